//! The rights that the guide lists.

use campanile_test::Acl;

use crate::SERVER;

const GUIDE: &str =
    include_str!("../../../crates/library/campanile/src/guide/kafka_in_production.md");

/// A right of a user, and what an error says about it.
#[derive(Debug)]
pub(crate) struct Right {
    acl: Acl,
    /// All of these are in the error.
    pub(crate) words: Vec<String>,
}

impl Right {
    pub(crate) fn allow(&self) {
        SERVER.kafka.allow(&self.acl).unwrap();
    }

    pub(crate) fn forbid(&self) {
        SERVER.kafka.forbid(&self.acl).unwrap();
    }

    /// Asserts that this text says what to allow.
    pub(crate) fn assert_is_named(&self, text: &str) {
        assert!(self.words.iter().all(|word| text.contains(word)), "{self:?}: {text}");
    }
}

/// Reads the rights for these purposes from the table in the guide, for a user. The names of groups and
/// topics are those of the user's scene.
pub(crate) fn for_purposes(user: &str, purposes: &[&str]) -> Vec<Right> {
    let rows = GUIDE.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| ")?.split(" | ").collect();
        let [purpose, resource, operation, _] = cells[..] else { return None };
        purposes.iter().any(|of| purpose.contains(of)).then_some((resource, operation))
    });
    let rights: Vec<_> =
        rows.map(|(resource, operation)| right(user, resource, operation)).collect();
    assert!(!rights.is_empty(), "the guide has no rights for {purposes:?}");
    rights
}

fn right(user: &str, resource: &str, operation: &str) -> Right {
    let (kind, rest) = resource.split_once(" `").unwrap();
    let name = scene_name(user, rest.split_once('`').unwrap().0);
    let acl = Acl::new(user, operation.trim_matches('`'), kind, &name);
    let mut words = vec![operation.trim_matches('`').to_owned(), kind.to_owned()];
    if kind == "topic" {
        words.push(format!("`{name}`"));
    }
    Right { acl, words }
}

/// Derives the name of a topic, a group or a transactional id in the user's scene from that in the guide.
pub(crate) fn scene_name(user: &str, name: &str) -> String {
    ["payments", "billing", "invoices"]
        .into_iter()
        .fold(name.to_owned(), |name, word| name.replace(word, &format!("{user}-{word}")))
}
