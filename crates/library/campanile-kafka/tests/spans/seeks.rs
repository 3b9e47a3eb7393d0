//! The events about seeks.

use campanile_core::{BoxError, Record};
use campanile_kafka::SeekTo;
use tower::service_fn;

use crate::CapturedLog;
use crate::support::{Log, consumer, mock, serve, until_committed};

#[tokio::test(flavor = "current_thread")]
async fn forward_seek_is_logged_once_at_warn() {
    let (log, _guard) = CapturedLog::start();
    let kafka = mock("orders", 1, 3);
    let config = kafka.consumer_config("g");
    let begun = Log::default();
    let seen = begun.clone();
    let stops_at_1 = service_fn(move |record: Record| {
        seen.push(&record);
        async move {
            if record.offset() == 1 {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(())
        }
    });
    let at_once = consumer(config.clone(), "orders").with_drain_timeout(std::time::Duration::ZERO);
    let serving = serve(at_once, stops_at_1);
    until_committed(&config, "orders", &[1]).await;
    begun.reaches(2).await;
    let handle = serving.handle();
    assert_eq!(handle.seek("orders", 0, SeekTo::End).await.unwrap(), 3);
    assert_eq!(handle.seek("orders", 0, SeekTo::Offset(2)).await.unwrap(), 2);
    // Skipped by the first seek, and delivered by the second one.
    begun.reaches(3).await;
    assert_eq!(begun.of(0), [0, 1, 2]);
    until_committed(&config, "orders", &[3]).await;
    serving.stop().await.unwrap();
    let logged = log.lines("WARN", "partition sought");
    let [line] = &logged[..] else { panic!("{}", log.text()) };
    for field in ["topic=\"orders\"", "partition=0", "from=1", "to=3"] {
        assert!(line.contains(field), "{field} is not in {line}");
    }
    let backward = log.lines("INFO", "partition sought");
    assert!(backward.len() == 1 && backward[0].contains("from=3 to=2"), "{backward:?}");
}
