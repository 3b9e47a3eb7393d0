//! The run queue: the order in which due queues are started. Queues are parked while the service of
//! their route is not ready.

use std::collections::VecDeque;

use crate::reports::QueueId;

#[derive(Default)]
pub(crate) struct RunQueue {
    next: VecDeque<QueueId>,
    routes: Vec<RouteState>,
}

/// The state of one route.
#[derive(Default)]
struct RouteState {
    /// The number of records that wait until the route's service is ready.
    not_ready: usize,
    /// Queues that are parked until no record waits for the service, or for what it depends on.
    parked: VecDeque<QueueId>,
}

impl RunQueue {
    pub(crate) fn push(&mut self, id: QueueId) {
        self.next.push_back(id);
    }

    pub(crate) fn push_front(&mut self, id: QueueId) {
        self.next.push_front(id);
    }

    pub(crate) fn front(&self) -> Option<QueueId> {
        self.next.front().copied()
    }

    pub(crate) fn pop(&mut self) -> Option<QueueId> {
        self.next.pop_front()
    }

    /// Parks the next queue, because the service of its route is not ready, or what it depends on is unavailable.
    pub(crate) fn park(&mut self, route: usize) {
        if let Some(id) = self.pop() {
            self.route(route).parked.push_back(id);
        }
    }

    /// Checks whether the service of this route is known not to be ready.
    pub(crate) fn is_blocked(&self, route: usize) -> bool {
        self.routes.get(route).is_some_and(|route| route.not_ready > 0)
    }

    /// Notes that another record waits for the service of this route.
    pub(crate) fn block(&mut self, route: usize) {
        self.route(route).not_ready += 1;
    }

    /// Notes that a record no longer waits for the service of this route. Once no record waits,
    /// the parked queues are next.
    pub(crate) fn unblock(&mut self, route: usize) {
        self.route(route).not_ready -= 1;
        if !self.is_blocked(route) {
            self.unpark(route);
        }
    }

    /// Checks whether queues of this route are parked.
    pub(crate) fn has_parked(&self, route: usize) -> bool {
        self.routes.get(route).is_some_and(|route| !route.parked.is_empty())
    }

    /// Makes the parked queues of this route the next ones, in their order.
    pub(crate) fn unpark(&mut self, route: usize) {
        let parked = std::mem::take(&mut self.route(route).parked);
        parked.into_iter().rev().for_each(|id| self.next.push_front(id));
    }

    fn route(&mut self, route: usize) -> &mut RouteState {
        if self.routes.len() <= route {
            self.routes.resize_with(route + 1, RouteState::default);
        }
        &mut self.routes[route]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut RunQueue) -> Vec<usize> {
        std::iter::from_fn(|| queue.pop()).map(QueueId::index).collect()
    }

    #[test]
    fn parked_queues_hold_up_no_others_and_keep_their_order() {
        let mut queue = RunQueue::default();
        (0..6).map(QueueId::numbered).for_each(|id| queue.push(id));
        queue.block(1);
        queue.block(1);
        // The even queues belong to a service that is not ready.
        for n in 0..6 {
            assert_eq!(queue.front(), Some(QueueId::numbered(n)));
            match n % 2 {
                0 => queue.park(1),
                _ => drop(queue.pop()),
            }
        }
        assert!(queue.is_blocked(1) && !queue.is_blocked(0));
        assert_eq!(queue.front(), None);
        queue.push(QueueId::numbered(6));
        queue.unblock(1);
        assert!(queue.is_blocked(1), "another record waits");
        queue.unblock(1);
        assert_eq!(all(&mut queue), [0, 2, 4, 6]);
    }
}
