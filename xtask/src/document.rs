//! The parts of documents that commands write.

use crate::Result;
use crate::progress::{now, root};
use std::fs;
use std::process::Command;

/// A block of Markdown that a command writes into documents, between two comments.
pub(crate) struct Block<'a> {
    /// The name in the comments, such as `prove model`.
    pub(crate) name: &'a str,
    pub(crate) documents: &'a [&'a str],
    /// The arguments of `cargo xtask` that write it.
    pub(crate) written_by: &'a str,
}

impl Block<'_> {
    /// Runs what returns the lines of the block, and writes the block into each document.
    ///
    /// # Errors
    ///
    /// Fails if a document has no place for the block, or if `run` fails. All documents then stay as they
    /// are.
    pub(crate) fn write(&self, run: impl FnOnce() -> Result<Vec<String>>) -> Result {
        self.read()?;
        // Read before the run, during which files may change.
        let commit = commit(self.documents)?;
        let start = now();
        let block = run()?.join("\n");
        let (by, seconds) = (self.written_by, start.elapsed().as_secs());
        let block = format!(
            "Written by `cargo xtask {by}` at {commit}, in {seconds} s with builds.\n\n{block}"
        );
        for document in self.documents {
            let (path, text) = (root().join(document), read_document(document)?);
            let (before, _, after) = split(document, &text, self.name)?;
            fs::write(path, format!("{before}\n{}\n{after}", block.trim_end()))?;
        }
        Ok(())
    }

    /// Reads the block of each document.
    ///
    /// # Errors
    ///
    /// Fails if a document has no place for the block.
    pub(crate) fn read(&self) -> Result<Vec<String>> {
        let block = |document: &&str| {
            Ok(split(document, &read_document(document)?, self.name)?.1.to_owned())
        };
        self.documents.iter().map(block).collect()
    }
}

fn read_document(document: &str) -> Result<String> {
    Ok(fs::read_to_string(root().join(document))?)
}

/// Splits a document into the part up to the block, the block, and the part after it. The outer
/// parts include the comments.
fn split<'a>(document: &str, text: &'a str, name: &str) -> Result<(&'a str, &'a str, &'a str)> {
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let start = text.find(&begin).map(|at| at + begin.len());
    let parts = start.and_then(|start| {
        let length = text[start..].find(&end)?;
        Some((&text[..start], text[start..start + length].trim(), &text[start + length..]))
    });
    parts.ok_or_else(|| {
        format!("{document} has no place for `{name}`: add {begin} and {end}").into()
    })
}

/// Describes the commit that is checked out, and whether files other than `documents` differ from
/// it.
fn commit(documents: &[&str]) -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git").args(args).current_dir(root()).output()?;
        if !output.status.success() {
            return Err(format!("`git {}` failed: {}", args.join(" "), output.status).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let excluded: Vec<_> = documents.iter().map(|document| format!(":!{document}")).collect();
    let mut status = vec!["status", "--porcelain", "--", "."];
    status.extend(excluded.iter().map(String::as_str));
    let changed = if git(&status)?.is_empty() { "" } else { ", with uncommitted changes" };
    Ok(format!("commit {commit}{changed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_found_between_its_comments() {
        let text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n";
        let (before, block, after) = split("a.md", text, "x").unwrap();
        assert_eq!(before, "a\n<!-- x: begin -->");
        assert_eq!((block, after), ("old", "<!-- x: end -->\nb\n"));
    }

    #[test]
    fn document_without_markers_is_an_error() {
        for text in ["<!-- x: begin -->", "<!-- x: end --> <!-- x: begin -->"] {
            let error = split("a.md", text, "x").unwrap_err();
            assert!(error.to_string().contains("a.md has no place for `x`"), "{error}");
        }
    }
}
