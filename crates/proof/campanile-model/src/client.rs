//! What a client is doing.

use crate::compact::{Command, Token, Verb};

/// What a client is doing with its record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Phase {
    /// It has no record.
    Idle,
    /// It repeats its acquire until it is answered.
    Acquiring,
    /// It gave up waiting for the answer to its acquire.
    Cancelling,
    /// It may run the handler until the deadline.
    Running,
    /// It may publish the dead letter until the deadline.
    GivingUp,
    /// It repeats the command that ends its grant until it is answered.
    Settling,
}

/// A process, which behaves as the keeper does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// The command that is not answered yet.
    pub(crate) pending: Command,
    pub(crate) owner: u8,
    pub(crate) payload: u8,
    pub(crate) attempt: u16,
    pub(crate) token: Token,
    /// The largest token that the process has seen.
    pub(crate) floor: Token,
    /// The deadline, by the client's own clock.
    pub(crate) until: i16,
    /// When it sent its acquire or its renewal, by its own clock.
    pub(crate) sent: i16,
    /// Whether the handler has had its effect, or the dead letter is published.
    pub(crate) has_acted: bool,
    /// Whether the handler has the recorded result of its first step.
    pub(crate) has_first_step: bool,
    /// Whether its lock was cut short: by the store's clock or data, or by an operator. No client can
    /// know that, so the promises about its lock do not hold.
    pub(crate) is_cut: bool,
}

impl Client {
    pub(crate) const NEW: Self = Self {
        phase: Phase::Idle,
        pending: Command::NONE,
        owner: 0,
        payload: 0,
        attempt: 0,
        token: Token::ZERO,
        floor: Token::ZERO,
        until: 0,
        sent: 0,
        has_acted: false,
        has_first_step: false,
        is_cut: false,
    };

    pub(crate) fn holds(&self, time: i16) -> bool {
        matches!(self.phase, Phase::Running | Phase::GivingUp) && time < self.until
    }

    pub(crate) fn command(&self, verb: Verb) -> Command {
        let Self { owner, payload, attempt, token, .. } = *self;
        Command { verb, owner, payload, attempt, token, floor: Token::ZERO }
    }

    /// Sends the command that ends the grant.
    pub(crate) fn settle(&mut self, verb: Verb) {
        let pending = match self.phase {
            Phase::Settling => Command { verb, ..self.pending },
            _ => self.command(verb),
        };
        *self = Self { phase: Phase::Settling, pending, floor: self.floor, ..Self::NEW };
    }

    pub(crate) fn end(&mut self) {
        *self = Self { floor: self.floor, ..Self::NEW };
    }
}
