use crate::Result;
use crate::progress::root;
use std::process::Command;

/// The document that `prove` writes its part of.
pub(crate) const EVIDENCE: &str = "docs/evidence.md";

/// Describes the commit that is checked out, and whether files differ from it.
pub(crate) fn commit() -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        let output = Command::new("git").args(args).current_dir(root()).output()?;
        if !output.status.success() {
            return Err(format!("`git {}` failed: {}", args.join(" "), output.status).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--", ".", &format!(":!{EVIDENCE}")])?;
    let changed = if changes.is_empty() { "" } else { ", with uncommitted changes" };
    Ok(format!("commit {commit}{changed}"))
}

/// Replaces what is between the two comments of an area.
pub(crate) fn replace_block(document: &str, area: &str, block: &str) -> Result<String> {
    let (begin, end) =
        (format!("<!-- prove {area}: begin -->"), format!("<!-- prove {area}: end -->"));
    let parts = document
        .split_once(&begin)
        .and_then(|(before, rest)| rest.split_once(&end).map(|(_, after)| (before, after)));
    let Some((before, after)) = parts else {
        return Err(format!("{EVIDENCE} has no place for `{area}`: add {begin} and {end}").into());
    };
    Ok(format!("{before}{begin}\n{block}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_replaced_and_the_rest_is_kept() {
        let document = "a\n<!-- prove x: begin -->\nold\n<!-- prove x: end -->\nb\n";
        let new = "a\n<!-- prove x: begin -->\nnew\n<!-- prove x: end -->\nb\n";
        assert_eq!(replace_block(document, "x", "new").unwrap(), new);
        assert_eq!(replace_block(new, "x", "new").unwrap(), new);
    }

    #[test]
    fn document_without_markers_is_an_error() {
        let error = replace_block("<!-- prove x: begin -->", "x", "new").unwrap_err();
        assert!(error.to_string().contains("add <!-- prove x: begin -->"), "{error}");
    }
}
