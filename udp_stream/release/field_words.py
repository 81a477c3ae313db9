"""What each field of a release record, and of a smoothed estimate, is, in a line: for the JSON Schemas in `docs/`."""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec

WORDS: Final[dict[str, dict[str, str]]] = {
    "Release": {
        "schema": "name and version of this form",
        "release_id": "cell, start of the slot in Unix seconds, and its length in seconds; one record has it, ever",
        "status": "released, or why nothing was: too few plates, too little budget left, nothing to be learnt, "
        "or a HAT that its plan lacks",
        "hat": "where and when",
        "mean": "mean speed of the HAT's samples; null if there is none",
        "variance": "variance of the samples' speeds; null if it was not asked for or is withheld",
        "cdf": "shares of samples at or below each edge; null if it was not asked for or is withheld",
        "counts": "public counts of the HAT; left out where the settings say so",
        "privacy": "what the record cost, and the budget",
        "policy": "hash of the settings that change what is promised or computed",
        "software": "what made the record",
        "trial": "true if other runs draw this HAT again: the ledger was for one run only",
        "forecast": "what was forecast of the mean before it was taken; null if nothing was",
    },
    "Hat": {
        "cell": "H3 cell, 15 hexadecimal digits",
        "resolution": "resolution of the cell, 0 to 15",
        "center": "longitude and latitude of the cell's centre, degrees",
        "slot_start": "start of the slot, ISO 8601 with the zone's offset",
        "slot_end": "end of the slot, which the slot does not contain",
    },
    "Mean": {
        "value_kmh": "the private mean, km/h, in [0, max_kmh]",
        "mechanism": "how it was taken",
        "grouping": "how samples were put into arrays, where the mechanism does",
        "epsilon": "largest charge to a plate of the HAT for it",
        "scale_kmh": "expected size of its noise, km/h",
        "expected_abs_error_kmh": "expected distance from the HAT's true mean, km/h",
        "interval95_kmh": "from and to: 95 % of true means lie in such an interval, where the model holds",
        "bias_bound_kmh": "most that it can be off without noise, if speeds were chosen against it",
    },
    "Variance": {
        "value_kmh2": "the private variance, (km/h)^2, at least 0",
        "mechanism": "how it was taken",
        "epsilon": "largest charge to a plate of the HAT for it",
        "scale_kmh2": "expected size of its noise, (km/h)^2",
        "expected_abs_error_kmh2": "the same: what capping does to it is not counted",
        "bias_bound_kmh2": "most that it can be off without noise, if speeds were chosen against it",
    },
    "Cdf": {
        "edges_kmh": "upper ends of the bins, km/h; a first edge that is given twice gives exact zeros a bin",
        "values": "share of samples at or below each edge; never falls, and ends in 1",
        "epsilon": "largest charge to a plate of the HAT for it",
        "branching": "children of a node on each level of the tree",
        "budgets": "what each level of the tree has of the epsilon, or of the rho",
        "expected_rms_error": "noise of a value before it is made monotone, in shares",
    },
    "Counts": {
        "plates": "plates in the HAT",
        "samples": "their samples, repeats counted once",
        "admitted_plates": "plates whose budget sufficed",
        "used_samples": "samples that the mean used",
    },
    "Privacy": {
        "unit": "what is protected: all samples of a license plate",
        "neighbours": "inputs that must look alike: the same but for the speeds of one plate",
        "epsilon": "most that this record cost an admitted plate",
        "accounting": "how losses add up: pure, approximate or zcdp",
        "period": "what a budget is for: a length of time, or lifetime",
        "period_epsilon": "budget of a plate and period",
        "caveats": "what happened to the ledger by which a plate may have lost more than is said here",
        "rho": "the cost in concentrated differential privacy; absent under pure accounting",
        "period_rho": "the budget in it; absent under pure accounting",
        "delta": "what each epsilon holds with; absent under pure accounting",
        "holds_for": "slot: the cost holds for all records of the slot together, as plates share clips among them",
    },
    "Forecast": {
        "value_kmh": "forecast of the mean, km/h",
        "deviation_kmh": "its standard deviation, km/h",
        "rest_kmh": "the part of that which releases of other HATs cannot lower, km/h",
        "prior": "what it reads of the counts: a relative speed and six features, standardised",
        "measured_kmh": "what the release says of the mean, km/h; it may lie beyond [0, max_kmh]",
        "measured_deviation_kmh": "the standard deviation of that, km/h",
    },
    "QueryResult": {
        "schema": "name and version of this form",
        "release_id": "query, its name, and the moment in Unix seconds; one record has it, ever",
        "status": "answered, or withheld: the moment's plates were others when its rounds began",
        "query": "what was asked, and when",
        "answer": "what was found; null if it is withheld",
        "plates": "public counts; null if it is withheld, and where the settings leave counts out",
        "privacy": "what the answer cost, and the budget, by distance",
        "policy": "hash of all that the query was asked under",
        "software": "what made the record",
        "trial": "true if other runs ask again: the ledger was for one run only",
    },
    "Query": {
        "name": "the query's name in the configuration",
        "kind": "range: how many plates in a region; density: around a place; nearest: how far the nearest are; "
        "threshold: whether the share of plates in a region is below one",
        "every": "how often it is asked",
        "moment": "when, ISO 8601 with the zone's offset",
        "age_s": "oldest position that counts, seconds before the moment",
        "box": "west, south, east, north of the region, degrees; null if it is no box",
        "polygon": "corners of the region, longitude and latitude; null if it is no polygon",
        "cells": "H3 cells of the region; null if it has none",
        "place": "longitude and latitude; null for a region",
        "k": "how many of the nearest; null for other kinds",
        "bandwidth_m": "bandwidth of the density, metres; null for other kinds",
        "rounds": "most rounds in which a plate is asked",
        "privatisation": "what gets noise: a plate's distance from what is asked, or its position (point)",
        "share": "of a threshold: the share that is asked about",
        "edge_m": "of a threshold: width of the region's edge, metres, in which a plate counts by how far inside it is",
    },
    "QueryAnswer": {
        "value": "the count; a density, as a share; of a threshold the share of plates inside; null for the nearest",
        "low": "the truth is at least this",
        "high": "the truth is at most this",
        "distances_m": "of the nearest that were found, the least first, metres; which plates they are is not told",
        "radii_m": "how far each distance is off at most, metres",
        "excess_m": "how much farther away the s-th nearest of those found may be than that of all, for every s, "
        "metres; null if a plate gave nothing",
        "probability": "with which the bounds hold, over the noise",
        "below": "of a threshold: whether the share is below the one asked about; null if no plate took part",
        "sure": "of a threshold: whether the bounds say so, or the value alone",
    },
    "Plates": {
        "asked": "plates with a position at the moment",
        "gave_nothing": "those of them that had too little budget for a first round",
        "rounds": "rounds in which plates were asked",
    },
    "GeoPrivacy": {
        "unit": "what is protected: where a license plate is",
        "neighbours": "inputs that must look alike: the same but for the position of one plate",
        "accounting": "how losses add up: pure (epsilon) or zcdp (rho)",
        "per": "distance that amounts are for: epsilon per km, rho per km2",
        "charged": "most that a plate was charged for this answer",
        "moment": "most that one could have been charged",
        "period": "what a budget is for: a length of time, or lifetime",
        "period_budget": "budget of a plate and period, for all queries",
        "caveats": "what happened to the ledger by which a plate may have lost more than is said here",
    },
    "Smoothed": {
        "schema": "name and version of this form",
        "hat": "where and when",
        "value_kmh": "estimate of the HAT's mean speed from releases and counts, km/h",
        "interval95_kmh": "from and to, km/h: 95 % of true means lie in such an interval, where the model holds",
        "expected_abs_error_kmh": "expected distance from the HAT's true mean, km/h",
        "guess": "what could be said without a release of this cell",
        "release_id": "that of the HAT's release; null for a cell without pings in the slot",
        "software": "what made the estimate",
        "trial": "true if other runs draw the releases behind it again: the ledger was for one run only",
    },
    "Guess": {
        "constant_kmh": "the baseline guess, one value for the city: the mean of the slot's estimates, km/h",
        "counts_kmh": "what the HAT's counts say, km/h",
        "expected_abs_error_kmh": "expected distance of `counts_kmh` from the HAT's true mean, by the estimate, km/h",
    },
}
"""By type and field."""


def described(kind: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a record type, with words for each of its fields. KeyError for a field without.

    A type is described by its docstring, without the example there.

    >>> from udp_stream.release.record import Counts
    >>> described(Counts, "counts")["$defs"]["Counts"]["properties"]["plates"]["description"]
    'plates in the HAT'
    """
    schema = msgspec.json.schema(kind)
    for title, definition in schema["$defs"].items():
        if "description" in definition:  # docstrings keep their indentation before Python 3.13
            definition["description"] = inspect.cleandoc(definition["description"]).partition("\n\n>>> ")[0]
        for field, property_ in definition["properties"].items():
            property_["description"] = WORDS[title][field]
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, **schema}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))  # defaults as JSON has them
    return plain
