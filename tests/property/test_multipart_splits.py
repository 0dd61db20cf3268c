"""Goal: how the network splits a form does not change the parsed result."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from api.files.upload_form import FileForm, FormRefusedError

BOUNDARY = b"ab"

# Made of what the parser looks for, so that almost-boundaries are common.
pieces = st.lists(
    st.sampled_from(
        [b"\r\n--ab", b"\r\n--a", b"\r", b"\n", b"--", b"ab", b"x", b"--ab--", b"\x00"]
    ),
    max_size=12,
).map(b"".join)
cuts = st.lists(st.integers(0, 400), max_size=20)


def form_of(content: bytes, field: bytes) -> bytes:
    return (
        b'--ab\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        + content
        + b'\r\n--ab\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
        + field
        + b"\r\n--ab--\r\n"
    )


def read(chunks: list[bytes]) -> tuple[str, dict[str, str], bytes | None, bytes]:
    """Return how it ended, and what was read until then when it ended well."""
    taken: list[bytes] = []
    form = FileForm(BOUNDARY, taken.append)
    try:
        for chunk in chunks:
            form.feed(chunk)
        form.finish()
    except FormRefusedError:
        return "refused", {}, None, b""
    return "read", form.fields, form.filename, b"".join(taken)


def split(whole: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(whole), *(place % (len(whole) + 1) for place in at)})
    return [whole[a:b] for a, b in pairwise(places)]


@given(content=pieces, field=pieces, at=cuts)
def test_any_split_parses_the_same(content: bytes, field: bytes, at: list[int]) -> None:
    whole = form_of(content, field)

    assert read(split(whole, at)) == read([whole])


@given(content=st.binary(max_size=200).filter(lambda b: b"--ab" not in b), at=cuts)
def test_the_file_is_unchanged(content: bytes, at: list[int]) -> None:
    ended, _, name, taken = read(split(form_of(content, b"batch"), at))

    assert (ended, name, taken) == ("read", b"f", content)


@given(junk=st.binary(max_size=300), at=cuts)
def test_arbitrary_bytes_are_refused(junk: bytes, at: list[int]) -> None:
    assert read(split(junk, at))[0] == "refused"
