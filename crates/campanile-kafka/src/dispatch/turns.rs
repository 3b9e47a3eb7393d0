//! Whose turn comes, in this order; apart are those whose service is not ready.

use std::collections::VecDeque;

use super::strand::StrandId;

/// Strands in the order of their turns.
#[derive(Default)]
pub(super) struct Turns {
    next: VecDeque<StrandId>,
    routes: Vec<Passed>,
}

/// The strands of one route that were passed over, since its service was not ready.
#[derive(Default)]
struct Passed {
    strands: VecDeque<StrandId>,
    /// Whether the service was not ready when it was asked last, since [`Turns::again`].
    full: bool,
}

impl Turns {
    /// Puts it at the end.
    pub(super) fn push(&mut self, id: StrandId) {
        self.next.push_back(id);
    }

    /// Whose turn it is. Who was passed over comes before the others, as soon as its service may be
    /// ready.
    pub(super) fn front(&mut self) -> Option<StrandId> {
        self.source().front().copied()
    }

    /// Takes that turn.
    pub(super) fn pop(&mut self) -> Option<StrandId> {
        self.source().pop_front()
    }

    /// Passes over whose turn it is, for the service of its route is not ready. Those behind it go on
    /// if theirs are.
    pub(super) fn pass(&mut self, route: usize) {
        let id = self.pop();
        if self.routes.len() <= route {
            self.routes.resize_with(route + 1, Passed::default);
        }
        let Passed { strands, full } = &mut self.routes[route];
        // The one by which the service was asked is the first that is to be served by it.
        match std::mem::replace(full, true) {
            false => id.into_iter().for_each(|id| strands.push_front(id)),
            true => strands.extend(id),
        }
    }

    /// Whether the service of this route is known not to be ready.
    pub(super) fn is_full(&self, route: usize) -> bool {
        self.routes.get(route).is_some_and(|passed| passed.full)
    }

    /// The services are to be asked again.
    pub(super) fn again(&mut self) {
        self.routes.iter_mut().for_each(|passed| passed.full = false);
    }

    fn source(&mut self) -> &mut VecDeque<StrandId> {
        let passed = self.routes.iter_mut().find(|p| !p.full && !p.strands.is_empty());
        passed.map_or(&mut self.next, |passed| &mut passed.strands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(numbers: std::ops::Range<usize>) -> Turns {
        let mut turns = Turns::default();
        numbers.map(StrandId::numbered).for_each(|id| turns.push(id));
        turns
    }

    fn all(turns: &mut Turns) -> Vec<usize> {
        std::iter::from_fn(|| turns.pop()).map(|id| id.index()).collect()
    }

    #[test]
    fn who_is_passed_over_holds_up_nobody_and_keeps_its_place() {
        let mut turns = turns(0..6);
        // The even ones are of a service that is not ready.
        for n in 0..6 {
            assert_eq!(turns.front(), Some(StrandId::numbered(n)));
            match n % 2 {
                0 => turns.pass(1),
                _ => drop(turns.pop()),
            }
        }
        assert!(turns.is_full(1) && !turns.is_full(0));
        assert_eq!(turns.front(), None);
        turns.push(StrandId::numbered(6));
        for _ in 0..3 {
            // Asked again, and not ready again.
            turns.again();
            assert_eq!(turns.front(), Some(StrandId::numbered(0)));
            turns.pass(1);
        }
        assert_eq!(turns.front(), Some(StrandId::numbered(6)));
        turns.again();
        assert_eq!(all(&mut turns), [0, 2, 4, 6]);
    }

    #[test]
    fn who_comes_later_stands_behind_those_that_were_passed_over() {
        let mut turns = turns(0..2);
        turns.pass(0);
        turns.pass(0);
        turns.push(StrandId::numbered(2));
        turns.pass(0);
        turns.again();
        assert_eq!(all(&mut turns), [0, 1, 2]);
    }
}
