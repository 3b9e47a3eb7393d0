//! Tests of the watermark against a model that remembers every delivery.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::watermark::{Delivery, Watermark};

#[derive(Clone, Debug)]
enum Step {
    /// The next offset is higher by this much; 1 leaves no gap.
    Deliver { ahead: i64 },
    /// The next offset is lower by this much.
    Reset { back: i64 },
    /// Finishes one of the unfinished deliveries, including superseded ones.
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
    /// Whether the position was reset to this offset or below.
    superseded: bool,
    finished: bool,
}

/// All deliveries.
#[derive(Default)]
struct Model {
    known: Vec<Known>,
    /// The watermark was reset, so deliveries before this index no longer move it.
    from: usize,
}

impl Model {
    /// Computes the offset after the last delivery that is finished before the first unfinished
    /// one.
    fn expected(&self) -> Option<i64> {
        let present = self.known.iter().enumerate().filter(|(_, k)| !k.superseded);
        let (index, last) = present.take_while(|(_, k)| k.finished).last()?;
        (index >= self.from).then_some(last.offset + 1)
    }

    fn reset(&mut self, offset: i64) {
        if self.expected().is_some_and(|watermark| watermark > offset) {
            self.from = self.known.len();
        }
        let again = self.known.iter_mut().filter(|k| k.offset >= offset);
        again.for_each(|k| k.superseded = true);
    }
}

proptest! {
    #[test]
    fn watermark_follows_the_contiguous_finished_deliveries(
        start in 0..1000_i64,
        steps in vec(step(), 1..200),
    ) {
        let mut watermark = Watermark::default();
        let mut model = Model::default();
        let mut offset = start;
        for step in steps {
            match step {
                Step::Deliver { ahead } => {
                    offset += ahead;
                    let delivery = watermark.deliver(offset);
                    let new = Known { delivery, offset, superseded: false, finished: false };
                    model.known.push(new);
                }
                Step::Reset { back } => {
                    if model.known.is_empty() {
                        continue;
                    }
                    offset = (offset - back).max(0);
                    model.reset(offset);
                    let delivery = watermark.deliver(offset);
                    let new = Known { delivery, offset, superseded: false, finished: false };
                    model.known.push(new);
                }
                Step::Finish { which } => {
                    let known = &model.known;
                    let open: Vec<usize> =
                        (0..known.len()).filter(|&i| !known[i].finished).collect();
                    if open.is_empty() {
                        continue;
                    }
                    let index = open[which.index(open.len())];
                    let before = model.expected();
                    model.known[index].finished = true;
                    let moved = watermark.finish(model.known[index].delivery);
                    let after = model.expected();
                    prop_assert_eq!(moved, after.filter(|_| after != before));
                }
            }
            prop_assert_eq!(watermark.watermark, model.expected());
            let unfinished = model.known.iter().find(|k| !k.superseded && !k.finished);
            if let (Some(offset), Some(unfinished)) = (watermark.watermark, unfinished) {
                prop_assert!(offset <= unfinished.offset, "{offset} covers {unfinished:?}");
            }
        }
    }

    #[test]
    fn delivery_finished_twice_counts_once(count in 1..50_usize) {
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
fn offset_gap_does_not_stop_the_watermark() {
    let mut watermark = Watermark::default();
    let first = watermark.deliver(0);
    let after_the_gap = watermark.deliver(1000);
    assert_eq!(watermark.finish(after_the_gap), None);
    assert_eq!(watermark.finish(first), Some(1001));
}

#[test]
fn reset_before_unfinished_restarts_the_watermark() {
    let mut watermark = Watermark::default();
    let old = watermark.deliver(500);
    let unfinished = watermark.deliver(501);
    assert_eq!(watermark.finish(old), Some(501));
    let new = watermark.deliver(100);
    assert_eq!(watermark.finish(unfinished), None);
    assert_eq!(watermark.finish(new), Some(101));
}

#[test]
fn reset_behind_unfinished_keeps_the_watermark_back() {
    let mut watermark = Watermark::default();
    let unfinished = watermark.deliver(5);
    watermark.deliver(6);
    let again = watermark.deliver(6);
    assert_eq!(watermark.finish(again), None);
    assert_eq!(watermark.finish(unfinished), Some(7));
}
