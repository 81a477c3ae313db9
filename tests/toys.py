"""A toy format and a toy source, as the next ones will be made: they go through the product's own road."""

import numpy as np

from udp_stream.pings.decode import NOT_IN_ARRAY, Location, PingFormat, Point, Reason, Refusal, WireBatch, WirePing


def toy(plate, time, lon, lat, speed):
    """A ping as the toy format spells it: five cells with semicolons; several pings in a message with bars."""
    return f"{plate};{time};{lon};{lat};{speed}".encode()


def read_toy(messages, max_message_bytes, max_pings_per_message):
    pings, places, refusals = [], [], []
    for index, message in enumerate(messages):
        pieces = message.split(b"|")
        if len(message) > max_message_bytes:
            refusals.append(Refusal(index, NOT_IN_ARRAY, Reason.OVERSIZED_MESSAGE, "$"))
            continue
        for at, piece in enumerate(pieces):
            cells, position = piece.decode().split(";"), at if len(pieces) > 1 else NOT_IN_ARRAY
            if len(cells) != 5:
                refusals.append(Refusal(index, position, Reason.NOT_JSON, "$"))
                continue
            plate, time, lon, lat, speed = cells
            pings.append(WirePing(plate, time, Location(Point(float(lon), float(lat))), float(speed)))
            places.append((index, position))
    message, position = np.array(places, np.int32).reshape(-1, 2).T
    return WireBatch(pings, message, position, refusals)


TOY = PingFormat(read_toy, lambda message: message.split(b"|"))


class ToySource:
    """Gives the frames that it was made with, one after another, and remembers what became of it."""

    format = TOY

    def __init__(self, frames, unit=None):
        self.frames, self.unit, self.given, self.closed = frames, unit, 0, False

    def messages(self):
        for frame in self.frames:
            self.given += 1
            yield frame

    def close(self):
        self.closed = True
