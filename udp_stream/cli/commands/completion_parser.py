"""The options of `completion`."""

from __future__ import annotations

from udp_stream.cli.options import Verbs, add_verb_without_settings, only_prints

SHELLS = ("bash", "zsh", "fish")


def add(verbs: Verbs) -> None:
    """The verb, with its options and examples."""
    parser = add_verb_without_settings(
        verbs, "completion", "print the completion of verbs, options and files for a shell", "completion"
    )
    parser.add_argument("shell", choices=SHELLS)
    only_prints(parser)
    parser.epilog = """\
examples:
  udp-stream completion bash > ~/.local/share/bash-completion/completions/udp-stream
  udp-stream completion zsh > ~/.zfunc/_udp-stream
  udp-stream completion fish > ~/.config/fish/completions/udp-stream.fish

Open a new shell then. bash needs its package bash-completion, or `source` of the file in ~/.bashrc; zsh needs
`fpath+=~/.zfunc; autoload -Uz compinit; compinit` in ~/.zshrc.
"""
