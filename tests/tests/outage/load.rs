//! A topic that is filled while it is consumed.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use campanile_test::KafkaServer;
use campanile_test::history::HistoryRecorder;

use crate::history::produce;
use crate::running_consumer::Payment;

/// Produces records continuously until it is dropped.
pub(crate) struct Load {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<usize>,
}

impl Load {
    /// Produces batches of records, in which one in ten repeats the key of an earlier record.
    pub(crate) fn start(
        kafka: &'static KafkaServer,
        topic: &'static str,
        partitions: i32,
        mut rng: fastrand::Rng,
        history: HistoryRecorder,
    ) -> Self {
        const BATCH_SIZE: usize = 20;
        const BATCH_INTERVAL: Duration = Duration::from_millis(100);
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut keys = 0;
            while stopped.recv_timeout(BATCH_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                let messages = (0..BATCH_SIZE).map(|_| {
                    let number = if keys > 0 && rng.u8(..10) == 0 {
                        rng.usize(..keys)
                    } else {
                        keys += 1;
                        keys - 1
                    };
                    // In any partition, so that repeats of a key also meet across partitions.
                    Payment::normal(number).message(topic, rng.i32(0..partitions))
                });
                produce(&history, kafka.producer(), topic, messages);
            }
            keys
        });
        Self { stop, thread }
    }

    /// Stops producing, and counts the keys.
    pub(crate) fn stop(self) -> usize {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}
