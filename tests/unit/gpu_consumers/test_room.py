"""Goal: never more at once than was said, and nobody is passed over."""

import asyncio

from gpu_consumers.quarantine.locks import Room


class Visit:
    """Somebody of some size who comes, and goes when told."""

    def __init__(self, room: Room, size: int) -> None:
        self.is_in, self._room, self._size = False, room, size
        self.task = asyncio.create_task(self._come())

    async def _come(self) -> None:
        await self._room.enter(self._size)
        self.is_in = True

    def go(self) -> None:
        self.is_in = False
        self._room.leave(self._size)


async def inside(visits: list[Visit]) -> list[int]:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return [number for number, visit in enumerate(visits) if visit.is_in]


async def test_who_fits_comes_in_and_others_in_their_order() -> None:
    room = Room(10)
    visits = [Visit(room, size) for size in (6, 4, 5, 1)]
    assert await inside(visits) == [0, 1]
    visits[1].go()
    assert await inside(visits) == [0]  # the last would fit: it does not pass the one before
    visits[0].go()
    assert await inside(visits) == [2, 3]


async def test_what_is_larger_than_the_room_has_it_for_itself() -> None:
    room = Room(10)
    visits = [Visit(room, size) for size in (1, 25, 1)]
    assert await inside(visits) == [0]
    visits[0].go()
    assert await inside(visits) == [1]
    visits[1].go()
    assert await inside(visits) == [2]


async def test_who_gives_up_keeps_no_place() -> None:
    room = Room(10)
    visits = [Visit(room, size) for size in (10, 10, 3)]
    assert await inside(visits) == [0]
    visits[1].task.cancel()
    assert await inside(visits) == [0]
    visits[0].go()
    assert await inside(visits) == [2]


async def test_who_gives_up_holds_up_nobody_who_fits() -> None:
    room = Room(10)
    visits = [Visit(room, size) for size in (5, 10, 5)]
    assert await inside(visits) == [0]
    visits[1].task.cancel()
    assert await inside(visits) == [0, 2]


async def test_who_gives_up_just_when_there_is_room_is_out_again() -> None:
    room = Room(10)
    visits = [Visit(room, size) for size in (10, 10, 10)]
    assert await inside(visits) == [0]
    visits[0].go()
    visits[1].task.cancel()
    assert await inside(visits) == [2]
