"""Goal: nothing runs beside what runs alone, and neither kind waits for all of the other."""

import asyncio

from gpu_consumers.quarantine.locks import Turns


class Hall:
    """Who is in, and in which order they came."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.came: list[str] = []
        self.together = 0
        self.is_alone = False
        self._stays: dict[str, asyncio.Event] = {}

    def begin(self, name: str, *, alone: bool = False) -> asyncio.Task[None]:
        self._stays[name] = asyncio.Event()
        return asyncio.create_task(self._alone(name) if alone else self._together(name))

    def end(self, name: str) -> None:
        self._stays[name].set()

    async def _alone(self, name: str) -> None:
        await self.turns.enter_alone()
        try:
            assert not self.together
            assert not self.is_alone
            self.is_alone = True
            self.came.append(name)
            await self._stays[name].wait()
        finally:
            self.is_alone = False
            self.turns.leave_alone()

    async def _together(self, name: str) -> None:
        await self.turns.enter()
        try:
            assert not self.is_alone
            self.together += 1
            self.came.append(name)
            await self._stays[name].wait()
        finally:
            self.together -= 1
            self.turns.leave()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_many_come_in_together_and_one_alone_waits_for_all() -> None:
    hall = Hall()
    tasks = [hall.begin("a"), hall.begin("b"), hall.begin("x", alone=True)]
    await settle()
    assert hall.came == ["a", "b"]
    hall.end("a")
    await settle()
    assert hall.came == ["a", "b"]
    hall.end("b")
    await settle()
    assert hall.came == ["a", "b", "x"]
    hall.end("x")
    await asyncio.gather(*tasks)


async def test_those_at_the_door_go_between_two_that_are_alone() -> None:
    hall = Hall()
    tasks = [hall.begin(name, alone=True) for name in ("x", "y")]
    await settle()
    tasks += [hall.begin(name) for name in ("a", "b")]
    await settle()
    assert hall.came == ["x"]
    hall.end("x")
    await settle()
    assert sorted(hall.came[1:]) == ["a", "b"]
    tasks.append(hall.begin("late"))  # who comes behind waits for the next round
    hall.end("a")
    hall.end("b")
    await settle()
    assert hall.came[3:] == ["y"]
    hall.end("y")
    hall.end("late")
    await asyncio.gather(*tasks)
    assert hall.came[4:] == ["late"]


async def test_who_goes_away_from_the_door_holds_up_nobody() -> None:
    hall = Hall()
    x = hall.begin("x", alone=True)
    await settle()
    gone, stays = hall.begin("gone"), hall.begin("stays")
    y = hall.begin("y", alone=True)
    await settle()
    gone.cancel()
    y.cancel()
    await settle()
    hall.end("x")
    hall.end("stays")
    await asyncio.gather(x, stays)
    assert hall.came == ["x", "stays"]


async def test_who_is_cancelled_just_when_the_door_opens_is_out_again() -> None:
    hall = Hall()
    x = hall.begin("x", alone=True)
    await settle()
    late = hall.begin("late")
    await settle()
    hall.turns._let_in()
    late.cancel()
    await settle()
    assert late.cancelled()
    hall.end("x")
    await x
    y = hall.begin("y", alone=True)
    hall.end("y")
    await y
    assert hall.came == ["x", "y"]


async def test_a_last_one_alone_that_gives_up_opens_the_door() -> None:
    hall = Hall()
    a = hall.begin("a")
    await settle()
    x = hall.begin("x", alone=True)
    await settle()
    b = hall.begin("b")
    await settle()
    assert hall.came == ["a"]
    x.cancel()
    await settle()
    assert hall.came == ["a", "b"]
    hall.end("a")
    hall.end("b")
    await asyncio.gather(a, b)
