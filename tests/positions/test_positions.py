import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import posenc
from hostile.test_checkpoints import little_memory
from posenc import InputError, Positions, Randomized
from posenc.conformance.fixtures import DECODER, MAX_POSITIONS, EncodingUnderTest, named
from posenc.distributed.exchange import calls_of
from posenc.positions.memory import Memory
from posenc.pretrained import multimodal


def dense(positions: Positions) -> list[list[list[bool]]]:
    return positions.mask()[:, 0].tolist()


@given(n=st.integers(1, 12), offset=st.integers(0, 9), causal=st.booleans())
def test_arange_is_the_tail_of_a_longer_sequence(n, offset, causal):
    p = Positions.arange(n, offset, causal=causal)
    assert p.q.tolist() == [list(range(offset, offset + n))]
    assert p.k.tolist() == [list(range(offset + n))]
    full = Positions.arange(offset + n, causal=causal).mask()
    assert torch.equal(p.mask(), full[:, :, offset:])


@given(offsets=st.lists(st.integers(0, 6), min_size=1, max_size=4), n=st.integers(1, 4))
def test_ragged_cache_rows_equal_their_own_arange(offsets, n):
    p = Positions.arange(n, torch.tensor(offsets), causal=True)
    for row, offset in enumerate(offsets):
        alone = Positions.arange(n, offset, causal=True)
        assert p.q[row].tolist() == alone.q[0].tolist()
        mask = p.mask()[row, 0]
        assert torch.equal(mask[:, : offset + n], alone.mask()[0, 0])
        assert not mask[:, offset + n :].any()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.booleans())
def test_packed_documents_see_themselves_only(lengths, causal):
    p = Positions.packed(lengths, causal=causal)
    assert p.q.tolist() == [[i for length in lengths for i in range(length)]]
    blocks = [Positions.arange(length, causal=causal).mask()[0, 0].float() for length in lengths]
    assert torch.equal(p.mask()[0, 0], torch.block_diag(*blocks).bool())
    assert p.lengths().tolist() == [[length for length in lengths for _ in range(length)]]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    for same in (Positions.packed(cu_seqlens=starts, causal=causal), Positions.packed(document_ids=ids, causal=causal)):
        assert torch.equal(same.q, p.q)
        assert torch.equal(same.mask(), p.mask())


def test_packed_batch_with_padding_at_the_end():
    p = Positions.packed(document_ids=torch.tensor([[0, 0, 1, -1], [5, 5, 5, 5]]), causal=True)
    assert p.q.tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert dense(p)[0] == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, False, False],
    ]
    assert p.lengths().tolist() == [[2, 2, 1, 0], [4, 4, 4, 4]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[0, 0, 1, 1, 1]], [[0, 0, 0, 1, 2]]),
        ([[1, 1, 1, 0, 0]], [[0, 1, 2, 2, 2]]),
        ([[1, 0, 1, 0, 1]], [[0, 0, 1, 1, 2]]),
    ],
    ids=["left", "right", "holes"],
)
def test_padding_mask_counts_real_tokens(mask, expected):
    p = Positions.from_mask(torch.tensor(mask))
    assert p.q.tolist() == expected
    assert p.mask()[0, 0].tolist() == [[bool(q and k) for k in mask[0]] for q in mask[0]], "padding sees nothing"
    last = Positions.from_mask(torch.tensor(mask), 2, causal=True)
    assert last.q.tolist() == [expected[0][-2:]]
    assert torch.equal(last.mask(), Positions.from_mask(torch.tensor(mask), causal=True).mask()[:, :, -2:])


def test_ids_keep_their_values_and_order_decides_causality():
    ids = torch.tensor([[7, 0, 3]])
    p = Positions.from_ids(ids, causal=True, packed=False)
    assert p.q.equal(ids)
    assert torch.equal(p.mask()[0, 0], torch.ones(3, 3).tril().bool())
    tail = Positions.from_ids(torch.tensor([3.5]), torch.tensor([0.5, 1.5, 3.5]), causal=True)
    assert tail.mask().all()
    assert Positions.from_ids(torch.tensor([2**24, 2**24 + 1])).q.diff().item() == 1


def test_cross_takes_queries_and_keys_from_two_positions():
    keys = Positions.from_mask(torch.tensor([[1, 1, 0], [1, 1, 1]]))
    p = Positions.cross(Positions.arange(2, 5, causal=True), keys)
    assert (p.num_queries, p.num_keys, p.batch, p.causal) == (2, 3, 2, False)
    assert p.q.tolist() == [[5, 6]]
    assert dense(p) == [[[True, True, False]] * 2, [[True, True, True]] * 2]
    packed = Positions.cross(Positions.packed([1, 2]), Positions.packed([2, 1]))
    assert dense(packed)[0] == [[True, True, False], [False, False, True], [False, False, True]]


def test_a_document_in_pieces_counts_on():
    p = Positions.packed(document_ids=torch.tensor([[3, 3, 1, 1, 3, 1], [0, 1, 0, 1, -1, -1]]))
    assert p.q.tolist() == [[0, 1, 0, 1, 2, 2], [0, 0, 1, 1, 0, 0]]
    narrow = Positions.packed(document_ids=torch.tensor([0, 1, 0, 1], dtype=torch.uint8)).with_prefix([2, 1])
    assert narrow.prefix.tolist() == [[True, True, True, False]]


def test_positions_are_stored_exactly():
    narrow = torch.tensor([0, 200, 255], dtype=torch.uint8)
    assert (Positions.from_ids(narrow).q - Positions.from_ids(narrow).k.flip(1)).tolist() == [[-255, 0, 255]]
    assert Positions.from_ids([0.5, 1.5]).q.dtype == torch.float64
    assert Positions.from_mask([[0, 1, 1]]).q.tolist() == [[0, 0, 1]]


def test_all_visible_is_known_without_reading():
    assert Positions.arange(4).all_visible
    assert not Positions.arange(4, causal=True).all_visible
    assert Positions.arange(1, 7, causal=True).all_visible
    assert not Positions.from_mask(torch.ones(1, 4)).all_visible


def tensors_of(x, path=""):
    """(path, tensor) of all that positions consist of."""
    if isinstance(x, torch.Tensor):
        yield path, x
    elif isinstance(x, (tuple, list)):
        for at, each in enumerate(x):
            yield from tensors_of(each, f"{path}[{at}]")
    elif type(x).__module__.startswith("posenc.positions"):
        for name, each in vars(x).items():
            if name not in ("ungated",):
                yield from tensors_of(each, f"{path}.{name}")


@pytest.mark.parametrize(
    "p",
    [
        Positions.arange(6, causal=True),
        Positions.arange(6, causal=True).keys(0, 3),
        Positions.arange(6, causal=True).with_prefix(2),
        Positions.arange(8, causal=True).with_blocks(2),
        Positions.arange(8, causal=True).shard(0, 2),
        calls_of(Positions.arange(8, causal=True).shard(0, 2), True)[0],
        Positions.grid(2, 3),
        Positions.packed([2, 4], causal=True),
        Positions.from_mask([[0, 1, 1]], causal=True),
    ],
    ids=repr,
)
def test_moved_positions_leave_nothing_behind_and_share_what_they_shared(p):
    before, after = dict(tensors_of(p)), dict(tensors_of(p.to("meta")))
    assert before.keys() == after.keys()
    assert [path for path, x in after.items() if not x.is_meta] == []
    shared = [
        (a, b)
        for a, x in before.items()
        for b, y in before.items()
        if x is y and not {"sharding", "of_keys"} & {*(a + b).replace("[", ".").split(".")}
    ]
    assert [(a, b) for a, b in shared if after[a] is not after[b]] == []


def test_some_of_the_keys_count_all_of_them_under_any_causality():
    some = Positions.arange(6, causal=True).keys(0, 3)
    assert some.visible_counts().tolist() == [[1, 2, 3, 4, 5, 6]]
    assert some.with_causal(False).visible_counts().tolist() == [[6] * 6]


def test_moving_and_sharing():
    p = Positions.from_mask(torch.tensor([[0, 1]]))
    moved = p.to("meta")
    assert {moved.q.device.type, moved.valid.device.type, moved.q_order.device.type} == {"meta"}
    memory, calls = Memory(True), []
    shares = p.in_pass(memory)
    assert shares.shared("key", lambda: calls.append(1) or "made") == "made"
    assert shares.shared("key", lambda: calls.append(1) or "again") == "made"
    assert calls == [1]
    assert p.with_causal(False) is p
    assert copy.deepcopy(shares)._memory is None
    assert torch.equal(pickle.loads(pickle.dumps(p)).mask(), p.mask())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positions.arange(2, torch.tensor([1.5])), "offset="),
        (lambda: Positions.from_ids(torch.zeros(2, 3, 4, 5)), "position_ids of shape"),
        (lambda: Positions.from_ids(torch.tensor([0.0, float("nan")])), "not finite"),
        (lambda: Positions.from_ids(torch.arange(3), torch.arange(2), causal=True), "2 keys for 3 causal queries"),
        (lambda: Positions.from_mask(torch.tensor([[0, 2]])), "ones and zeros"),
        (lambda: Positions.from_mask(torch.ones(3)), "attention_mask of shape"),
        (lambda: Positions.from_mask(torch.ones(1, 3), 4), "num_queries=4"),
        (lambda: Positions.packed(), "exactly one"),
        (lambda: Positions.packed([2], cu_seqlens=[0, 2]), "exactly one"),
        (lambda: Positions.packed([2, 0]), "at least one token"),
        (lambda: Positions.packed([2.7, 3.9]), "integer"),
        (lambda: Positions.packed(cu_seqlens=[1, 2]), "cu_seqlens"),
        (lambda: Positions.packed(cu_seqlens=[0, 3, 2, 5]), "cu_seqlens"),
        (lambda: Positions.packed(cu_seqlens=[0, 0]), "cu_seqlens"),
        (lambda: Positions.packed(document_ids=torch.zeros(1, 0).long()), "document_ids"),
        (lambda: Positions.from_ids(torch.tensor([True])), "a mask goes to from_mask"),
        (lambda: Positions.from_ids([0, 1, 2], [0, 1]).with_causal(True), "2 keys for 3 causal queries"),
        (lambda: Positions.packed(document_ids=torch.zeros(2, 2)), "document_ids"),
        (lambda: Positions.from_ids([[0], [1]], [[0, 1, 2]] * 3), "tokens of 2 and 3 rows"),
        (lambda: Positions.arange(4).moved(lambda at, order: at / 0), r"move returned a tensor .* return finite"),
        (lambda: Positions.arange(4).moved(lambda at, order: at[:, :2]), "move returned a tensor of shape"),
        (lambda: Positions.arange(4).moved(lambda at, order: 3), "move returned 3"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "positions",
    [
        Positions.arange(7), Positions.arange(3, 4), Positions.arange(2, torch.tensor([5, 0, 3])),
        Positions.from_mask(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])), Positions.packed([2, 1, 4]),
        Positions.packed(document_ids=torch.tensor([[3, 1, 3, -1, 1], [0, 0, 0, 0, 0]])), Positions.from_ids([5, 5, 2], packed=False),
        Positions.from_mask(torch.tensor([[0, 1, 1, 1]]), 2),
    ],
)  # fmt: skip
def test_visible_counts_are_the_masks(positions, causal):
    positions = positions.with_causal(causal)
    mask = positions.mask()[:, 0].sum(-1)
    assert torch.equal(positions.visible_counts().expand_as(mask), mask)


def test_visible_counts_of_cross_attention():
    assert Positions.cross(Positions.arange(3), Positions.arange(40)).visible_counts().tolist() == [[40] * 3]


def test_text_and_image_meet():
    text, image = Positions.arange(3), Positions.grid(2, 2)
    p = Positions.cross(text, image)
    assert p.q[0].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert Positions.cross(image, text).k[0].tolist() == [[0, 0], [1, 1], [2, 2]]
    q, k, v = (torch.randn(1, 2, n, 8, dtype=torch.float64) for n in (3, 4, 4))
    assert posenc.attention(q, k, v, posenc.AxialRotary(8), p).shape == q.shape
    with pytest.raises(posenc.InputError, match="one coordinate"):
        posenc.attention(q, k, v, posenc.Rotary(8), p)
    with pytest.raises(posenc.InputError, match="2 coordinates, keys with 3"):
        Positions.cross(image, Positions.grid(2, 2, 2))


def test_positions_print_in_a_line():
    assert repr(Positions.arange(1, 57, causal=True)) == "Positions(1 query from 57, 58 keys from 0, causal)"
    assert repr(Positions.from_mask(torch.ones(2, 3))) == "Positions(3 queries, 3 keys, 2 rows, padded)"
    assert repr(Positions.packed([2, 3])) == "Positions(5 queries, 5 keys, packed)"
    assert repr(Positions.grid(2, 3)) == "Positions(6 queries, 6 keys, 2 axes)"
    assert repr(Positions.arange(8).shard(0, 2)) == "Positions(4 queries from 0, 8 keys from 0, a shard)"
    assert repr(Positions.arange(4, device="meta")) == "Positions(4 queries from 0, 4 keys from 0)"


def test_documents_of_no_tokens_are_none():
    """FlashAttention's convention, where static shapes pad cu_seqlens with its total."""
    for starts in ([0, 3, 3, 5], [0, 0, 3, 5], [0, 3, 5, 5, 5]):
        p = Positions.packed(cu_seqlens=torch.tensor(starts), causal=True)
        assert torch.equal(p.mask(), Positions.packed([3, 2], causal=True).mask())
        assert p.q.tolist() == [[0, 1, 2, 0, 1]]
        assert p.lengths().tolist() == [[3, 3, 3, 2, 2]]
        assert p.visible_counts().tolist() == [[1, 2, 3, 1, 2]]
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    rope, padded = posenc.Rotary(8), Positions.packed(cu_seqlens=[0, 3, 5, 5, 5], causal=True)
    assert torch.equal(
        posenc.attention(q, k, v, rope, padded), posenc.attention(q, k, v, rope, Positions.packed([3, 2], causal=True))
    )


# ---------------------------------------------------------------- positions that fall


RESTARTS = [0, 1, 2, 0, 1, 0, 0, 1]


def test_restarts_are_documents():
    lengths = [3, 2, 1, 2]
    for causal in (False, True):
        p, packed = Positions.from_ids(RESTARTS, packed=True, causal=causal), Positions.packed(lengths, causal=causal)
        assert torch.equal(p.mask(), packed.mask())
        assert torch.equal(p.visible_counts(), packed.visible_counts())
    rows = Positions.from_ids([[0, 1, 2, 0], [4, 9, 3, 4]], packed=True)
    assert rows.k_document.tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    tail = Positions.from_ids(RESTARTS[-2:], RESTARTS, packed=True, causal=True)
    assert torch.equal(tail.mask(), Positions.packed(lengths, causal=True).mask()[:, :, -2:])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Positions.from_ids(RESTARTS, causal=True),
        lambda: Positions.from_ids(RESTARTS).with_causal(True),
        lambda: Positions.from_ids(RESTARTS).to("cpu").moved(lambda at, order: at * 2.0).with_causal(True),
        lambda: Positions.from_ids(RESTARTS).moved(lambda at, order: order).with_causal(True),
        lambda: Positions.from_ids([2], [0, 1, 0, 1, 2], causal=True),
        lambda: Positions.from_ids([[0, 1, 2], [1, 1, 0]], causal=True),
        lambda: Positions.from_ids([0.5, 0.25], causal=True),
        lambda: posenc.Transformer(posenc.TransformerConfig(5, dim=16, num_heads=2), posenc.Rotary(8))(
            torch.zeros(1, 8, dtype=torch.long), Positions.from_ids(RESTARTS)
        ),
    ],
)
def test_causal_positions_that_fall_are_refused_with_the_remedies(make):
    with pytest.raises(
        posenc.InputError, match=r"position_ids fall from .*packed=True .*Positions.packed.*packed=False"
    ):
        make()


def test_positions_that_may_fall():
    """In any order without causality, on several axes, as one text where that is said, and where tokens share a position."""
    assert Positions.from_ids([3, 1, 2]).mask().all()
    assert Positions.from_ids([[[1, 0], [0, 1]]], causal=True).causal
    assert Positions.from_ids([3, 1, 2], causal=True, packed=False).mask()[0, 0, 2].all()
    assert Positions.from_ids([0, 1, 2, 3]).take([3, 1]).with_causal(True).causal
    assert Positions.from_ids([3, 1, 2], packed=False).moved(lambda at, order: at + 1).with_causal(True).causal
    draft = Positions.from_ids([0, 1, 2, 2, 3, 3], causal=True)  # a tree, by depth
    assert draft.visible_counts().tolist() == [[1, 2, 3, 4, 5, 6]]
    with pytest.raises(posenc.InputError, match="packed=True: reads documents from positions on one axis"):
        Positions.from_ids([[[1, 0], [0, 1]]], packed=True)
    with pytest.raises(posenc.InputError, match="packed=1"):
        Positions.from_ids([0, 1], packed=1)


def test_positions_that_a_mask_goes_beside_do_not_count():
    beside = Positions.arange(4, causal=True).derived(counted=False)
    for positions in (beside, beside.moved(lambda at, order: at), beside.with_window(2), beside.keys(0, 2)):
        for count in (positions.visible_counts, positions.lengths):
            with pytest.raises(posenc.InputError, match=r"which a 4-D mask hides.*position_ids that start again"):
                count()


@pytest.mark.parametrize("name", ["none", "rope", "t5", "fire", "shaw"])
def test_slots_that_no_document_fills_are_never_read(name):
    encoding = posenc.create(name, num_heads=2, head_dim=4, max_positions=16, causal=True).double()
    q, k, v = torch.randn(3, 1, 2, 8, 4, dtype=torch.float64).unbind()
    static = Positions.packed(cu_seqlens=[0, 3, 5, 5], slots=8, causal=True)
    for x in (q, k, v):
        x[:, :, 5:] = torch.nan
    out = posenc.attention(q, k, v, encoding, static)
    want = posenc.attention(*(x[:, :, :5] for x in (q, k, v)), encoding, Positions.packed([3, 2], causal=True))
    assert_close(out[:, :, :5], want, rtol=0, atol=1e-12)
    assert_close(out[:, :, 5:], torch.zeros_like(out[:, :, 5:]))
    assert torch.equal(static.mask()[..., :5, :5], Positions.packed([3, 2], causal=True).mask())


@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_padding_of_a_packed_row_takes_no_row_of_a_table_and_no_block(name):
    tested = EncodingUnderTest(named(name))
    model, ids = tested.model(DECODER), torch.arange(MAX_POSITIONS + 9)[None] % 5
    static = Positions.packed([3, 4], slots=ids.shape[1], causal=True)
    both = (static, Positions.packed([3, 4], causal=True))
    both = tuple(p.with_blocks(2, torch.ones(2, 2, dtype=torch.bool)) for p in both)
    for training in (True, False) if isinstance(model.encoding, Randomized | posenc.PoSE) else (False,):
        model.train(training)
        got, want = (model(ids[:, : p.num_keys], p) for p in both)
        if not training:
            assert_close(got[:, :7], want)


def test_fewer_slots_than_tokens_are_refused():
    with pytest.raises(InputError, match="slots=4: must be at least 5"):
        Positions.packed([3, 2], slots=4)


MANY = 10**12


@pytest.mark.parametrize(
    "make",
    [
        lambda: Positions.arange(MANY),
        lambda: Positions.arange(1, MANY),
        lambda: Positions.arange(1, torch.tensor([3, MANY])),
        lambda: Positions.prefix_lm(2, MANY),
        lambda: Positions.packed([3, MANY]),
        lambda: Positions.packed(cu_seqlens=[0, 3, MANY]),
        lambda: Positions.packed([3, 2], slots=MANY),
        lambda: Positions.grid(10**6, 10**6),
        lambda: Positions.grid(2, 2, prefix=MANY),
        lambda: Positions.grids([(2, 2), (10**6, 10**6)]),
        lambda: Positions.grids([(1, 1)] * 4096 + [(256, 256)], padded=True),
        lambda: multimodal([3, (10**6, 10**6)]),
        lambda: multimodal([MANY]),
    ],
)
def test_more_tokens_than_memory_has_are_refused_before_it_is_taken(make):
    with little_memory(1 << 30), pytest.raises(InputError, match="at most"):
        make()
