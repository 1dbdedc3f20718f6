"""The decisions of a rescue, one by one: what is mended, which epoch an offset has, who wins."""

from __future__ import annotations

from logstore.rescue.lineage import History, LineageRun, agreeing_entries, lineage_of, runs_of
from logstore.rescue.merging import BatchFate, Candidate, choose, fate_of
from logstore.rescue.placing import FileFrame, RescuedRange, coalesce, copies, mend_epochs, place
from logstore.rescue.witnesses import BatchContent, placed_by_copies

FRAME = FileFrame(base=0, next_base=-1, bases=frozenset({0}), behind=-1, sparse=False)


def pieces(*ranges: tuple[int, int, int], batches: int = 1) -> list[RescuedRange]:
    """Batches side by side in a file: first and next offset, epoch."""
    return [
        RescuedRange(0, 100 * at, 100 * at + 100, first, after, epoch, batches)
        for at, (first, after, epoch) in enumerate(ranges)
    ]


def offsets(found: list[RescuedRange]) -> list[tuple[int, int]]:
    return [(piece.first, piece.next) for piece in found]


# -- base offsets ----------------------------------------------------------------------------------


def test_a_base_offset_is_mended_where_its_neighbours_leave_one_place() -> None:
    found = list(
        place(
            pieces((0, 5, 1), (5, 9, 1), (1 << 40, (1 << 40) + 3, 1), (12, 20, 1), (20, 21, 1)),
            FRAME,
        )
    )
    assert offsets(found)[2:4] == [(9, 12), (12, 20)]
    assert [piece.mended for piece in found] == [False, False, True, False, False]


def test_a_flipped_bit_in_the_last_base_offset_is_mended() -> None:
    found = list(place(pieces((0, 5, 1), (5, 9, 1), (9 + 64, 12 + 64, 1)), FRAME))
    assert offsets(found) == [(0, 5), (5, 9), (9, 12)]


def test_two_neighbours_are_mended_where_they_fill_their_hole_together() -> None:
    flipped = pieces((0, 5, 1), (5, 16, 1), (16 + 2, 20 + 2, 1), (20 + 8, 24 + 8, 1), (24, 30, 1))
    known = [*flipped[:4], flipped[4]._replace(batches=2)]
    assert offsets(list(place(known, FRAME)))[2:4] == [(16, 20), (20, 24)]


def test_swapped_batches_are_believed() -> None:
    swapped = pieces((0, 5, 1), (9, 12, 1), (5, 9, 1), (12, 20, 1))
    assert offsets(list(place(swapped, FRAME))) == [(0, 5), (9, 12), (5, 9), (12, 20)]


def test_a_copy_of_a_batch_out_of_place_is_homeless() -> None:
    doubled = pieces((0, 5, 1), (5, 9, 1), (0, 5, 1), (9, 12, 1))
    assert [piece.homeless for piece in place(doubled, FRAME)] == [False, False, True, False]


def test_gaps_of_a_compacted_log_are_no_damage() -> None:
    frame = FileFrame(base=0, next_base=-1, bases=frozenset({0}), behind=0, sparse=True)
    gaps = pieces((2, 5, 1), (8, 9, 1), (100, 101, 1))
    found = list(place(gaps, frame))
    assert offsets(found) == [(2, 5), (8, 9), (100, 101)]
    assert [piece.behind for piece in found] == [0, 5, 9]


def test_a_gap_in_a_log_that_was_never_compacted_is_no_history() -> None:
    frame = FileFrame(base=0, next_base=20, bases=frozenset({0, 20}), behind=0, sparse=False)
    late = list(coalesce(place(pieces((15, 20, 1)), frame)))
    assert [(piece.first, piece.behind) for piece in late] == [(15, -1)]
    inside = list(coalesce(place(pieces((0, 5, 1), (9, 20, 1), batches=2), frame)))
    assert [(piece.first, piece.behind) for piece in inside] == [(0, -1), (9, -1)]


def test_a_gap_in_a_file_that_a_recovery_kept_is_no_history() -> None:
    kept = FileFrame(base=0, next_base=-1, bases=frozenset(), behind=-1, sparse=True)
    found = list(coalesce(place(pieces((0, 5, 1), (9, 20, 1)), kept)))
    assert [(piece.first, piece.behind) for piece in found] == [(0, -1), (9, -1)]


# -- base offsets that another replica proves ------------------------------------------------------


def test_a_doubtful_batch_goes_where_a_copy_has_its_proven_place() -> None:
    (one,) = pieces((1 << 42, (1 << 42) + 5, 1))
    lost = one._replace(first_crc=7, alone=True)
    content = BatchContent(100, 7, 5)
    found = placed_by_copies(lost, {content: {435}}, {})
    assert (found.first, found.next, found.mended, found.alone) == (435, 440, True, False)
    assert placed_by_copies(lost, {content: {1 << 42}}, {}) == lost._replace(alone=False)
    assert placed_by_copies(lost, {content: {435, 900}}, {}).homeless
    assert placed_by_copies(lost, {BatchContent(100, 8, 5): {435}}, {}) == lost
    back = placed_by_copies(lost._replace(alone=False, homeless=True), {content: {435}}, {})
    assert (back.first, back.homeless) == (435, False)


def test_a_batch_that_its_neighbours_prove_stays_where_it_is() -> None:
    (one,) = pieces((10, 15, 1))
    plain = one._replace(first_crc=7)
    assert placed_by_copies(plain, {BatchContent(100, 7, 5): {435}}, {}) == plain


def test_a_batch_that_its_own_replica_proves_elsewhere_is_another_one_with_equal_bytes() -> None:
    (one,) = pieces((30, 31, 1))
    loose = one._replace(first_crc=7, alone=True)
    content = BatchContent(100, 7, 1)
    assert placed_by_copies(loose, {content: {5}}, {content: {5}}) == loose
    assert placed_by_copies(loose, {content: {5, 12}}, {content: {5, 12}}) == loose
    assert placed_by_copies(loose, {content: {5, 40}}, {content: {5}}).first == 40
    assert placed_by_copies(loose, {content: {5, 30}}, {content: {5}}) == loose._replace(
        alone=False
    )


# -- file names ------------------------------------------------------------------------------------


def test_a_file_under_the_name_of_another_keeps_its_offsets() -> None:
    frame = FileFrame(base=0, next_base=50, bases=frozenset({0, 50}), behind=-1, sparse=False)
    assert offsets(list(place(pieces((50, 60, 1)), frame))) == [(50, 60)]


# -- leader epochs ---------------------------------------------------------------------------------


def _epochs(found: list[RescuedRange], on_file: int | None = None) -> list[tuple[int, bool]]:
    return [(p.epoch, p.sure) for p in mend_epochs(found, lambda offset: on_file)]


def test_an_epoch_does_not_rise_for_one_batch() -> None:
    found = pieces((0, 5, 3), (5, 9, 7), (9, 12, 3))
    assert _epochs(found) == [(3, True)] * 3


def test_the_epoch_file_decides_about_a_single_batch() -> None:
    found = pieces((0, 5, 3), (5, 9, 131075))
    assert _epochs(found, on_file=3) == [(3, True)] * 2
    assert _epochs(pieces((0, 5, 3), (5, 9, 4)), on_file=4)[1] == (4, True)


def test_a_batch_of_an_old_format_gets_no_epoch() -> None:
    """It has no field for one. Neither its neighbours nor a file can say what was there."""
    old, *new = pieces((0, 5, -1), (5, 9, 3), (9, 12, 3))
    found = list(mend_epochs([old._replace(magic=1), *new], {0: 3, 5: 3, 9: 3}.get))
    assert [(piece.epoch, piece.mended) for piece in found] == [(-1, False), (3, False), (3, False)]
    assert runs_of(found) == (LineageRun(5, 12, 3),)


def test_a_new_epoch_that_nothing_vouches_for_is_not_sure() -> None:
    assert _epochs(pieces((0, 5, 3), (5, 9, 4))) == [(3, True), (4, False)]


# -- the committed history -------------------------------------------------------------------------


def history(*runs: tuple[int, int, int], entries: tuple[tuple[int, int], ...] = ()) -> History:
    return History(tuple(LineageRun(*run) for run in runs), entries)


def test_the_latest_epoch_has_the_history_not_the_longest_log() -> None:
    lineage = lineage_of([history((0, 120, 3)), history((0, 100, 3), (100, 104, 4))])
    assert lineage.steps == ((0, 3), (100, 4))
    stray = RescuedRange(0, 0, 1, 90, 120, 3, 5)
    assert lineage.limit_of(stray, high_watermark=0) == 100


def test_a_follower_fills_what_the_leader_lost() -> None:
    leader = history((0, 50, 3), (80, 104, 5))
    assert lineage_of([leader, history((0, 60, 3), (60, 80, 4))]).steps == (
        (0, 3),
        (60, 4),
        (80, 5),
    )


def test_an_epoch_file_tells_where_lost_batches_began() -> None:
    leader = history((0, 50, 3), (80, 104, 5), entries=((3, 0), (5, 60)))
    lineage = lineage_of([leader, history((0, 90, 3))])
    assert lineage.steps == ((0, 3), (60, 5))
    assert lineage.undecided == ()


def test_in_an_undecided_range_who_left_the_history_is_believed_up_to_its_watermark() -> None:
    lineage = lineage_of([history((0, 50, 3), (80, 104, 5)), history((0, 90, 3))])
    assert lineage.undecided == ((50, 80),)
    stray = RescuedRange(0, 0, 1, 0, 90, 3, 5)
    assert lineage.limit_of(stray, high_watermark=63) == 63
    assert lineage.limit_of(stray, high_watermark=-1) == 50


def test_an_epoch_file_of_another_log_is_not_believed() -> None:
    runs = [LineageRun(0, 50, 3), LineageRun(50, 90, 4)]
    assert agreeing_entries(((3, 0), (4, 50)), runs) == ((3, 0), (4, 50))
    assert agreeing_entries(((3, 0),), runs) == ((3, 0),)  # it lags
    assert agreeing_entries(((3, 0), (4, 20)), runs) == ()
    assert agreeing_entries(((9, 0),), runs) == ()


def test_of_files_of_two_histories_the_later_epoch_counts() -> None:
    mixed = pieces((0, 50, 3), (50, 90, 3), (60, 80, 4), batches=9)
    assert runs_of(mixed) == (LineageRun(0, 60, 3), LineageRun(60, 80, 4))


def test_a_copy_that_was_mended_to_follow_its_original_is_one() -> None:
    one, other = pieces((0, 5, 3), (5, 9, 3))
    known = (
        one._replace(first_crc=7, last_crc=8, batches=2),
        other._replace(first_crc=8, last_crc=8),
    )
    assert copies(known) == set()
    doubled = other._replace(first_crc=8, last_crc=8, mended=True)
    assert copies([known[0], doubled]) == {doubled}


# -- which batch is taken --------------------------------------------------------------------------


def candidate(replica: int, crc: int, **fields: object) -> Candidate:
    known = Candidate(replica, replica, replica, 10, 19, 500, crc, 10, True, False)
    return known._replace(**fields)


def test_the_committed_epoch_wins_over_numbers() -> None:
    strays = [candidate(n, 7, fits=False) for n in (0, 1)]
    assert choose([*strays, candidate(2, 8)]).crc == 8


def test_what_most_replicas_have_wins() -> None:
    found = [candidate(0, 7), candidate(1, 8), candidate(2, 8)]
    assert choose(found).crc == 8
    assert fate_of(found[0], choose(found), found) is BatchFate.OUTVOTED


def test_one_against_one_is_a_contradiction() -> None:
    found = [candidate(0, 7), candidate(1, 8)]
    taken = choose(found)
    assert taken.replica == 0  # the closest to the committed history
    assert fate_of(found[1], taken, found) is BatchFate.CONTRADICTS


def test_of_compacted_copies_the_one_with_more_records_wins() -> None:
    found = [candidate(0, 7, records=3), candidate(1, 7, records=3), candidate(2, 8)]
    assert choose(found).replica == 2
    assert fate_of(found[0], choose(found), found) is BatchFate.COMPACTED


def test_what_nothing_casts_doubt_on_wins() -> None:
    assert choose([candidate(0, 7, doubtful=True), candidate(1, 8)]).crc == 8
