//! What happened to a record, in words.

use std::fmt;

/// The events of a record, in order.
#[derive(Debug, Default)]
pub(super) struct Story {
    events: Vec<Event>,
    was_delivered: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    DeliveredAgain,
    Other(String),
}

impl Story {
    pub(super) fn add_delivery(&mut self) {
        if std::mem::replace(&mut self.was_delivered, true) {
            self.events.push(Event::DeliveredAgain);
        }
    }

    /// Removes a delivery that has not reached the handler.
    pub(super) fn remove_delivery(&mut self) {
        self.events.pop_if(|event| *event == Event::DeliveredAgain);
    }

    pub(super) fn add(&mut self, event: impl Into<String>) {
        self.events.push(Event::Other(event.into()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        for run in self.events.chunk_by(|one, next| one == next) {
            let text = match (&run[0], run.len()) {
                (Event::Other(text), _) => text.clone(),
                (Event::DeliveredAgain, 1) => "delivered again".to_owned(),
                (Event::DeliveredAgain, times) => format!("delivered again {times} times"),
            };
            let separator = if std::mem::replace(&mut is_first, false) { "" } else { ", then " };
            write!(f, "{separator}{text}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_counted_after_the_first() {
        let mut story = Story::default();
        story.add_delivery();
        assert!(story.is_empty());
        story.remove_delivery();
        story.add("dropped");
        for _ in 0..3 {
            story.add_delivery();
        }
        story.remove_delivery();
        story.add("given up");
        assert_eq!(story.to_string(), "dropped, then delivered again 2 times, then given up");
    }
}
