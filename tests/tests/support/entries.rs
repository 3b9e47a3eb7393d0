//! The entries of a store of any kind.

use std::collections::HashMap;
use std::time::Duration;

use campanile::IdempotencyKey;
use campanile::key::Namespace;
use campanile::store::{Entry, Found, InspectStore, ScanCursor, ScanFilter, StoreKey};
use campanile_admin::StoreConfig;
use tokio::runtime::Runtime;

/// How long the store may take to answer on a stalled machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The entries of one namespace.
pub(crate) struct Entries {
    namespace: Namespace,
    by_digest: HashMap<[u8; 16], Entry>,
    /// How many entries cannot be read.
    pub(crate) unreadable: usize,
}

/// Reads the entries of the store with this URL.
pub(crate) fn read(url: &str, namespace: &str) -> Entries {
    let namespace = Namespace::try_from(namespace).unwrap();
    let filter = ScanFilter::new(namespace.clone());
    let mut entries = Entries { namespace, by_digest: HashMap::new(), unreadable: 0 };
    Runtime::new().unwrap().block_on(async {
        let config = url.parse::<StoreConfig>().unwrap().with_command_timeout(TIMEOUT);
        let store = config.connect().await.unwrap();
        let mut cursor = Some(ScanCursor::default());
        while let Some(from) = cursor {
            let page = store.scan(&filter, &from).await.unwrap();
            for (key, found) in page.entries {
                match found {
                    Found::Entry { entry, .. } => {
                        entries.by_digest.insert(*key.digest(), entry);
                    }
                    _ => entries.unreadable += 1,
                }
            }
            cursor = page.next;
        }
    });
    entries
}

impl Entries {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        let key = IdempotencyKey::new(key.to_owned()).unwrap();
        self.by_digest.get(StoreKey::new(self.namespace.clone(), &key).digest())
    }
}
