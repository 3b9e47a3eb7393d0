//! Tests of Campanile across its crates, on real servers; see `tests/`. The library itself only
//! compiles the code blocks of the documents.

/// A document with code blocks that run as doctests.
macro_rules! document {
    ($name:ident, $path:literal) => {
        #[cfg(doctest)]
        #[doc = include_str!($path)]
        struct $name;
    };
}

document!(Readme, "../../README.md");
document!(Contributing, "../../CONTRIBUTING.md");
document!(Choosing, "../../docs/choosing.md");
document!(Evidence, "../../docs/evidence.md");
document!(Guarantees, "../../docs/guarantees.md");
document!(Kubernetes, "../../docs/kubernetes.md");
document!(Layers, "../../docs/layers.md");
document!(Migrating, "../../docs/migrating.md");
document!(Protocol, "../../docs/protocol.md");
document!(Troubleshooting, "../../docs/troubleshooting.md");
document!(Upgrading, "../../docs/upgrading.md");
