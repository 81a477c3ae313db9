"""`[source]`: how to read a feed that is not in the form of the contract."""

from __future__ import annotations

import difflib
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from udp_stream.errors import ConfigError
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.json import FIELDS, JSON, FeedForm, FeedMapping, mapped_form, mapping_of
from udp_stream.pings.presets import PRESETS, WITHOUT_SPEED, Preset
from udp_stream.pings.times import EPOCHS

DELIMITERS = {"": "", ",": ",", ";": ";", "\t": "\t", "tab": "\t", "|": "|"}
"""What a delimiter may be, and the character that is meant."""

_OF_MAPPING = (*FIELDS, "records", "time_format")
_NO_PRESET = Preset(title="", keys={}, unit=None, origin="")


class SourceSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys that are not set have the preset's value, else that of the contract's form.

    Once one is set, fields are read leniently: numbers may be text, plates integers. `delimiter` alone changes nothing
    but how CSV is cut.
    """

    preset: str = ""
    plate: str | None = None
    time: str | None = None
    time_format: str | None = None
    time_zone: str | None = None
    longitude: str | None = None
    latitude: str | None = None
    speed: str | None = None
    records: str | None = None
    delimiter: str = ""

    @property
    def is_mapped(self) -> bool:
        """Whether the feed has a form of its own."""
        return bool(self.preset) or any(getattr(self, name) is not None for name in (*_OF_MAPPING, "time_zone"))

    @property
    def mapping(self) -> FeedMapping:
        """Where the fields are. ConfigError that names the key."""
        preset = _preset(self.preset)
        asked = {name: getattr(self, name) for name in _OF_MAPPING}
        keys = preset.keys | {name: value for name, value in asked.items() if value is not None}
        if self.delimiter not in DELIMITERS:
            raise ConfigError(f'source.delimiter: expected one of , ; | tab, or "", got {self.delimiter!r}')
        try:
            mapping = mapping_of(keys, self._zone, DELIMITERS[self.delimiter])
        except ValueError as error:
            raise ConfigError(f"source.{error}") from error
        if mapping.zone is None and not mapping.reads_offsets:
            raise ConfigError(
                f"source.time_zone: expected an IANA time zone, as source.time_format {mapping.time_format!r} reads "
                'no offset (%z), got ""'
            )
        return mapping

    @property
    def form(self) -> FeedForm:
        """How messages spell pings: in the contract's form, strictly, where no key is set."""
        return mapped_form(self.mapping) if self.is_mapped else FeedForm(self.mapping, JSON)

    @property
    def format(self) -> PingFormat:
        """The same, for those that have messages and no files."""
        return self.form.format

    @property
    def written(self) -> tuple[tuple[str, str], ...]:
        """What is read of which field, for the policy: nothing for the contract's own form."""
        if not self.is_mapped:
            return ()
        mapping = self.mapping
        reads_zone = mapping.time_format not in EPOCHS
        zone = (self.time_zone or "") if reads_zone else ""
        return (*((name, getattr(mapping, name)) for name in _OF_MAPPING), ("time_zone", zone))

    @property
    def unit(self) -> str | None:
        """The unit that the preset's feed has; None where it may be any."""
        return _preset(self.preset).unit

    @property
    def _zone(self) -> ZoneInfo | None:
        if not self.time_zone:
            return None
        try:
            return ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder of zones
            raise ConfigError(f"source.time_zone: expected an IANA time zone, got {self.time_zone!r}") from error


def _preset(name: str) -> Preset:
    if not name:
        return _NO_PRESET
    if name in PRESETS:
        return PRESETS[name]
    if why := WITHOUT_SPEED.get(name.lower()):
        raise ConfigError(f"source.preset: there is none for {name!r}: {why}")
    near = difflib.get_close_matches(name.lower(), PRESETS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PRESETS)}"
    raise ConfigError(f"source.preset: expected a feed that is known by name, got {name!r}; {hint}")


def check_source(source: SourceSection, unit: str) -> None:
    """ConfigError for what types cannot say, and for a unit that is not the preset's."""
    _ = source.mapping
    if source.unit is not None and source.unit != unit:
        raise ConfigError(
            f"speed.unit: expected {source.unit!r}, in which feeds of source.preset {source.preset!r} have their "
            f"speeds, got {unit!r}. If yours differs, name the paths instead of the preset"
        )
