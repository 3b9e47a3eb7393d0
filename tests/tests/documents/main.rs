//! Checks that the targets of the documents' links exist. (The code blocks are doctests of this
//! package.)
#![expect(clippy::unwrap_used, reason = "test helpers")]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Extracts all links of a document as text and target.
fn links(document: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(document).unwrap();
    text.match_indices("](")
        .map(|(middle, _)| {
            let before = &text[..middle];
            let label = &before[before.rfind('[').unwrap() + 1..];
            let after = &text[middle + 2..];
            (label.to_owned(), after[..after.find(')').unwrap()].to_owned())
        })
        .collect()
}

fn documents() -> Vec<PathBuf> {
    let mut documents: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lua/README.md"]
            .map(|name| root().join(name))
            .into();
    for folder in ["docs", "docs/decisions"] {
        let files = fs::read_dir(root().join(folder)).unwrap().map(|file| file.unwrap().path());
        documents.extend(files.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    documents
}

#[test]
fn links_within_project_have_existing_targets() {
    let mut count = 0;
    for document in documents() {
        for (label, target) in links(&document) {
            if target.starts_with("http") {
                continue;
            }
            let path = target.split('#').next().unwrap();
            let target_path = document.parent().unwrap().join(path);
            assert!(target_path.exists(), "{}: [{label}]({target})", document.display());
            count += 1;
        }
    }
    assert!(count > 20, "only {count} links were found");
}

#[test]
fn tests_named_in_documents_exist() {
    for (document, min_count) in [("docs/evidence.md", 100), ("docs/layers.md", 30)] {
        let document = root().join(document);
        let mut count = 0;
        for (label, target) in links(&document) {
            let name = label.strip_prefix('`').and_then(|label| label.strip_suffix('`'));
            let Some(name) = name else {
                continue;
            };
            let file = fs::read_to_string(document.parent().unwrap().join(&target)).unwrap();
            assert!(file.contains(&format!("fn {name}(")), "{target} has no test {name}");
            count += 1;
        }
        assert!(count > min_count, "{}: only {count} tests are named", document.display());
    }
}
