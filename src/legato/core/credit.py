"""Credit: how many bytes may be in flight at once."""


class Credit:
    """The sliding window, in bytes.

    A part larger than the whole credit travels alone: the window is never exceeded by more than that one part, and
    nothing can be too large to be sent. The limit comes with each question because steps may have different plans.
    """

    def __init__(self) -> None:
        self.in_flight_bytes = 0
        self.in_flight_parts = 0

    def allows(self, length: int, limit: int | None) -> bool:
        return limit is None or self.in_flight_parts == 0 or self.in_flight_bytes + length <= limit

    def take(self, length: int) -> None:
        self.in_flight_bytes += length
        self.in_flight_parts += 1

    def give_back(self, length: int) -> None:
        self.in_flight_bytes -= length
        self.in_flight_parts -= 1
