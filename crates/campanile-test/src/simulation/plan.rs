//! The parameters of one simulation.

use std::time::Duration;

use campanile_core::limits::MIN_LOCK_TTL;
use campanile_test::faults::Fault;
use fastrand::Rng;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) processes: usize,
    pub(super) keys: usize,
    pub(super) events: usize,
    pub(super) ttl: Duration,
    pub(super) max_hold: Duration,
    pub(super) max_attempts: u16,
    /// How often faults occur, from 0 (never) to 1 (often).
    pub(super) fault_rate: f64,
}

impl Plan {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let ttl = match rng.u8(..3) {
            0 => MIN_LOCK_TTL,
            1 => Duration::from_secs(3),
            _ => Duration::from_secs(30),
        };
        Self {
            processes: rng.usize(1..=3),
            keys: rng.usize(1..=4),
            events: rng.usize(20..=120),
            ttl,
            max_hold: ttl * rng.u32(2..=10),
            max_attempts: rng.u16(1..=4),
            fault_rate: rng.f64(),
        }
    }

    /// The pause between two events: mostly much shorter than a lock's TTL.
    pub(super) fn pause(&self, rng: &mut Rng) -> Duration {
        match rng.u8(..4) {
            0 => Duration::ZERO,
            1 => self.ttl.mul_f64(rng.f64()),
            _ => self.ttl.mul_f64(rng.f64() / 20.0),
        }
    }

    pub(super) fn fault_odds(&self) -> Vec<(f64, Fault)> {
        let slow = Fault::Slow(self.ttl / 50);
        let fault_odds = [
            (0.15, Fault::LoseReply),
            (0.10, Fault::Refuse),
            (0.05, Fault::Hang),
            (0.05, Fault::HangReply),
            (0.15, slow),
            (0.03, Fault::FewerAnswers),
            (0.03, Fault::MoreAnswers),
            (0.03, Fault::Panic),
        ];
        let scale = |(fault_odds, fault)| (fault_odds * self.fault_rate, fault);
        fault_odds.into_iter().map(scale).collect()
    }
}
