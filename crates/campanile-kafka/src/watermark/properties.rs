//! The watermark against a model that remembers everything.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Delivery, Watermark};

#[derive(Clone, Debug)]
enum Step {
    /// The next offset is this much higher: 1 without a gap.
    Deliver { ahead: i64 },
    /// The next offset is this much lower.
    Reset { back: i64 },
    /// One of the unfinished deliveries, of whatever time.
    Finish { which: prop::sample::Index },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..4_i64).prop_map(|ahead| Step::Deliver { ahead }),
        1 => (0..20_i64).prop_map(|back| Step::Reset { back }),
        6 => any::<prop::sample::Index>().prop_map(|which| Step::Finish { which }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Known {
    delivery: Delivery,
    offset: i64,
    /// How many resets there were before it.
    epoch: usize,
    finished: bool,
}

/// What the mark must be: one beyond the last finished before the first unfinished.
fn expected(known: &[Known], epoch: usize) -> Option<i64> {
    let of_epoch = known.iter().filter(|k| k.epoch == epoch);
    of_epoch.take_while(|k| k.finished).last().map(|k| k.offset + 1)
}

proptest! {
    #[test]
    fn the_mark_is_always_just_beyond_the_contiguous_finished_deliveries(
        start in 0..1000_i64,
        steps in vec(step(), 1..200),
    ) {
        let mut watermark = Watermark::default();
        let mut known: Vec<Known> = Vec::new();
        let (mut offset, mut epoch) = (start, 0);
        for step in steps {
            match step {
                Step::Deliver { ahead } => {
                    offset += ahead;
                    let delivery = watermark.deliver(offset);
                    known.push(Known { delivery, offset, epoch, finished: false });
                }
                Step::Reset { back } => {
                    if known.is_empty() {
                        continue;
                    }
                    offset = (offset - back).max(0);
                    epoch += 1;
                    let delivery = watermark.deliver(offset);
                    known.push(Known { delivery, offset, epoch, finished: false });
                }
                Step::Finish { which } => {
                    let open: Vec<usize> =
                        (0..known.len()).filter(|&i| !known[i].finished).collect();
                    if open.is_empty() {
                        continue;
                    }
                    let index = open[which.index(open.len())];
                    let before = expected(&known, epoch);
                    known[index].finished = true;
                    let moved = watermark.finish(known[index].delivery);
                    let after = expected(&known, epoch);
                    prop_assert_eq!(moved, after.filter(|_| after != before));
                }
            }
            prop_assert_eq!(watermark.mark, expected(&known, epoch));
            let unfinished = known.iter().find(|k| k.epoch == epoch && !k.finished);
            if let (Some(mark), Some(unfinished)) = (watermark.mark, unfinished) {
                prop_assert!(mark <= unfinished.offset, "{mark} covers {unfinished:?}");
            }
        }
    }

    #[test]
    fn what_is_finished_twice_counts_once(count in 1..50_usize) {
        let mut watermark = Watermark::default();
        let deliveries: Vec<_> = (0..count as i64).map(|o| watermark.deliver(o)).collect();
        for (offset, delivery) in deliveries.into_iter().enumerate() {
            prop_assert_eq!(watermark.finish(delivery), Some(offset as i64 + 1));
            prop_assert_eq!(watermark.finish(delivery), None);
        }
        prop_assert!(watermark.delivered.is_empty());
    }
}

#[test]
fn a_gap_left_by_compaction_or_a_transaction_marker_does_not_stop_the_mark() {
    let mut watermark = Watermark::default();
    let first = watermark.deliver(0);
    let after_the_gap = watermark.deliver(1000);
    assert_eq!(watermark.finish(after_the_gap), None);
    assert_eq!(watermark.finish(first), Some(1001));
}

#[test]
fn after_a_reset_to_an_earlier_offset_the_mark_starts_there() {
    let mut watermark = Watermark::default();
    let old = watermark.deliver(500);
    let unfinished = watermark.deliver(501);
    assert_eq!(watermark.finish(old), Some(501));
    let new = watermark.deliver(100);
    assert_eq!(watermark.finish(unfinished), None);
    assert_eq!(watermark.finish(new), Some(101));
}
