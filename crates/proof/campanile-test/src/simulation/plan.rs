//! The parameters of one simulation.

use std::time::Duration;

use campanile_core::limits::MIN_LOCK_TTL;
use campanile_history::{Order, Settings};
use campanile_idempotency::policy::OnLost;
use fastrand::Rng;

use super::process::choose;

/// The parameters of one simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) processes: usize,
    pub(super) keys: usize,
    pub(super) events: usize,
    /// The TTL of all locks.
    pub ttl: Duration,
    pub(super) max_hold: Duration,
    pub(super) max_attempts: u16,
    pub(super) on_lost: OnLost,
    /// Whether the store's clock is set forward and back.
    pub(super) steps_clock: bool,
    /// How often faults occur, from 0 (never, except that processes are killed) to 1 (often). Without
    /// faults, fewer causes hold for a key that runs again.
    pub fault_rate: f64,
}

impl Plan {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let ttl = match rng.u8(..3) {
            0 => MIN_LOCK_TTL,
            1 => Duration::from_secs(3),
            _ => Duration::from_secs(30),
        };
        let fault_rate = if rng.u8(..4) == 0 { 0.0 } else { rng.f64() };
        Self {
            processes: rng.usize(1..=3),
            keys: rng.usize(1..=10),
            events: rng.usize(20..=120),
            ttl,
            max_hold: ttl * rng.u32(2..=10),
            max_attempts: rng.u16(1..=4),
            on_lost: *choose(rng, &[OnLost::Cancel, OnLost::Cancel, OnLost::Notify]),
            steps_clock: fault_rate > 0.0 && rng.u8(..3) == 0,
            fault_rate,
        }
    }

    /// Whether anything is broken, except that processes are killed.
    pub(super) fn has_faults(&self) -> bool {
        self.fault_rate > 0.0
    }

    /// The pause between two events: mostly much shorter than a lock's TTL.
    pub(super) fn pause(&self, rng: &mut Rng) -> Duration {
        match rng.u8(..4) {
            0 => Duration::ZERO,
            1 => self.ttl.mul_f64(rng.f64()),
            _ => self.ttl.mul_f64(rng.f64() / 20.0),
        }
    }

    /// The timeout of a store's call. As the keeper's, so that locks survive a lost call.
    pub fn command_timeout(&self) -> Duration {
        (self.ttl / 6).min(Duration::from_secs(1))
    }

    /// What the judge must know.
    pub(super) fn settings(&self) -> Settings {
        let micros = |duration: Duration| duration.as_micros() as u64;
        Settings {
            order: Order::None,
            lock_ttl: micros(self.ttl),
            max_hold: Some(micros(self.max_hold)),
            transactions: None,
            tolerance: 0,
        }
    }
}
