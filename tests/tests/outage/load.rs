//! A topic that is filled while it is consumed.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use campanile_test::KafkaServer;

use crate::serving::Payment;

/// Produces records continuously until it is dropped.
pub(crate) struct Load {
    end: mpsc::Sender<()>,
    thread: thread::JoinHandle<usize>,
}

impl Load {
    /// Produces batches of records, in which one in ten repeats the key of an earlier record.
    pub(crate) fn start(
        kafka: &'static KafkaServer,
        topic: &'static str,
        partitions: i32,
        mut rng: fastrand::Rng,
    ) -> Self {
        const AT_ONCE: usize = 20;
        const PAUSE: Duration = Duration::from_millis(100);
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut keys = 0;
            while ended.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let messages = (0..AT_ONCE).map(|_| {
                    let number = if keys > 0 && rng.u8(..10) == 0 {
                        rng.usize(..keys)
                    } else {
                        keys += 1;
                        keys - 1
                    };
                    // In any partition, so that repeats of a key also meet across partitions.
                    Payment::usual(number).message(topic, rng.i32(0..partitions))
                });
                kafka.producer().produce_all(messages).unwrap();
            }
            keys
        });
        Self { end, thread }
    }

    /// Stops producing, and returns the number of keys.
    pub(crate) fn end(self) -> usize {
        drop(self.end);
        self.thread.join().unwrap()
    }
}
