"""Goal: the ideal of a prefix cache counts whole blocks of all but the first item of a prefix."""

from pathlib import Path

from benchmarks.data.prefix_items import ideal_cached_tokens, shuffled_items
from benchmarks.measurements.prefix_order import Usage, usage_of


def test_items_are_shuffled_and_each_prefix_is_shared_equally() -> None:
    items = shuffled_items(4, 25, seed=1)
    prefixes = [item.prefix for item in items]
    assert sorted(prefixes.count(prefix) for prefix in {*prefixes}) == [25] * 4
    assert len({item.prompt.text for item in items}) == 100
    assert prefixes != sorted(prefixes)
    assert items == shuffled_items(4, 25, seed=1)


def test_only_whole_blocks_of_later_items_are_cached() -> None:
    shared = [*range(10)]
    prompts = [[*shared, 100], [*shared, 101], [7, 7, 7, 7, 7], [*shared, 102], [7, 7, 7, 7, 7]]
    numbers = [0, 0, 1, 0, 1]
    assert ideal_cached_tokens(prompts, numbers, block_tokens=4) == 8 + 8 + 4
    assert ideal_cached_tokens(prompts, numbers, block_tokens=1) == 10 + 10 + 4
    assert ideal_cached_tokens(prompts[:1], numbers[:1], block_tokens=1) == 0


def test_usage_is_summed_with_and_without_details(tmp_path: Path) -> None:
    lines = [
        '{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}',
        '{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":null}',
        '{"prompt_tokens":1,"completion_tokens":1}',
    ]
    path = tmp_path / "output.jsonl"
    path.write_text("".join(f'{{"response":{{"body":{{"usage":{one}}}}}}}\n' for one in lines))
    assert usage_of(path) == Usage(prompt=16, cached=8, output=4)
