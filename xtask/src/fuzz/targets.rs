//! The list of fuzz targets.

/// A fuzz target: a test that reads any bytes.
pub(crate) struct Target {
    pub(crate) package: &'static str,
    /// The test binary: the name of a test, or of the package's library or program.
    pub(crate) binary: &'static str,
    /// The path of the test in its binary. Its last part is unique among all targets.
    pub(crate) test: &'static str,
    /// What the bytes are, and what is checked.
    pub(crate) checks: &'static str,
}

/// All targets.
pub(crate) const TARGETS: &[Target] = &[
    Target {
        package: "campanile-core",
        binary: "fuzz",
        test: "entry::entry",
        checks: "a stored entry: read exactly if the protocol allows it, and written as the same bytes; \
                 every operation leaves an entry for which this holds",
    },
    Target {
        package: "campanile-core",
        binary: "fuzz",
        test: "payload::payload",
        checks: "a payload in JSON: the error has its place and no word of the payload",
    },
    Target {
        package: "campanile-core",
        binary: "fuzz",
        test: "texts::texts",
        checks: "`traceparent`, coordinates, a namespace or a duration: displayed as a text that reads as \
                 the same value",
    },
    Target {
        package: "campanile-redis",
        binary: "campanile_redis",
        test: "reply::fuzz::script_reply",
        checks: "a script's reply: each answer is that of its key, and what is no entry is never absent",
    },
    Target {
        package: "campanile-redis",
        binary: "campanile_redis",
        test: "inspect::fuzz::reads",
        checks: "replies to `TIME`, `GET` and `PEXPIRETIME`, a key's name, a cursor: what is there and no \
                 entry is unreadable, never absent",
    },
    Target {
        package: "campanile-redis",
        binary: "campanile_redis",
        test: "topology::cluster::fuzz::slots",
        checks: "`CLUSTER SLOTS` or a redirection: a slot's master is one that the reply names for it",
    },
    Target {
        package: "campanile-redis",
        binary: "campanile_redis",
        test: "check::fuzz::report",
        checks: "`INFO`, settings and `TIME`: a replica and a server that evicts are found",
    },
    Target {
        package: "campanile-postgres",
        binary: "campanile_postgres",
        test: "fuzz::rows",
        checks: "rows of the database's functions: the entry has what its row has, and rows of other keys \
                 are refused",
    },
    Target {
        package: "campanile-kafka",
        binary: "campanile_kafka",
        test: "epilogue::dead_letter::headers::fuzz::letter",
        checks: "a dead letter's headers: read or refused by name; a record's own letter restores it, \
                 within the limits",
    },
    Target {
        package: "campanile-kafka",
        binary: "campanile_kafka",
        test: "epilogue::retry_topics::fuzz::copy",
        checks: "headers in a retry topic: a record's own copy has its position, time and headers",
    },
    Target {
        package: "campanile-kafka",
        binary: "campanile_kafka",
        test: "transaction::fuzz::outputs",
        checks: "stored outputs: read only if they are written as the same bytes",
    },
    Target {
        package: "campanile-history",
        binary: "judge",
        test: "fuzz::history",
        checks: "a history: both judges read it, or neither, and find the same; each event is written as \
                 the same event",
    },
    Target {
        package: "campanile-admin",
        binary: "fuzz",
        test: "deployment",
        checks: "a configuration file in TOML: read or refused",
    },
    Target {
        package: "campanile-admin",
        binary: "fuzz",
        test: "store_url",
        checks: "the URL of a store: what is shown does not depend on its password",
    },
    Target {
        package: "campanile-admin",
        binary: "fuzz",
        test: "key_source",
        checks: "a JSON pointer into a payload: the key is the value there, and errors do not have it",
    },
    Target {
        package: "campanile-admin",
        binary: "campanile_admin",
        test: "kafka::assignment::fuzz::assignment",
        checks: "the assignment of a group's member: each partition takes 4 bytes, and is written as the \
                 same partition",
    },
    Target {
        package: "campanile-cli",
        binary: "campanile",
        test: "fuzz::arguments",
        checks: "the arguments of `campanile`: read, or refused with the exit code for wrong usage",
    },
];

impl Target {
    pub(crate) fn name(&self) -> &'static str {
        self.test.rsplit("::").next().unwrap_or(self.test)
    }

    /// Whether the binary is a test, and not the package's library or program.
    pub(crate) fn is_in_tests(&self) -> bool {
        !self.package.replace('-', "_").starts_with(self.binary)
    }

    /// The folder with the target's `corpus` and `crashes`, relative to the root. The test repeats the
    /// inputs in both.
    pub(crate) fn inputs(&self) -> String {
        format!("fuzz/{}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::root;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn each_target_has_a_corpus_and_each_corpus_a_target() {
        let entries = fs::read_dir(root().join("fuzz")).unwrap().map(|entry| entry.unwrap().path());
        let found: BTreeSet<_> = entries.filter(|path| path.is_dir()).collect();
        assert_eq!(found, TARGETS.iter().map(|target| root().join(target.inputs())).collect());
        for folder in found {
            let inputs = fs::read_dir(folder.join("corpus")).unwrap().count();
            assert!((1..=200).contains(&inputs), "{} has {inputs} inputs", folder.display());
        }
    }
}
