//! Rewrites source text so that one build contains all mutants.

use crate::mutants::{Genre, Mutant};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::iter::Peekable;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, Block, Expr, ExprBinary, ExprStruct, ExprUnary};
use xtask::Result;

/// A source file in which each mutant that has a place is chosen at run time.
#[derive(Debug)]
pub(crate) struct Instrumented {
    pub(crate) text: String,
    /// Which mutant stands in which range of the text, in bytes. A mutant may have several.
    pub(crate) ranges: Vec<(Range<usize>, usize)>,
}

/// Rewrites a file with these mutants of it, by their numbers.
pub(crate) fn instrument(source: &str, mutants: &[(usize, &Mutant)]) -> Result<Instrumented> {
    let mut by_place: HashMap<_, Vec<(usize, &str)>> = HashMap::new();
    let lines: Vec<&str> = source.split_inclusive('\n').collect();
    for (number, mutant) in mutants {
        let before: usize = lines[..mutant.line - 1].iter().map(|line| line.len()).sum();
        let line = lines[mutant.line - 1].chars().take(mutant.column - 1);
        let place = before + line.map(char::len_utf8).sum::<usize>();
        let here = by_place.entry((mutant.genre, place)).or_default();
        here.push((*number, &*mutant.replacement));
    }
    let mut visitor = Visitor { source, by_place, edits: Vec::new() };
    visitor.visit_file(&syn::parse_file(source)?);
    let mut edits = visitor.edits;
    edits.sort_by_key(|edit| edit.sort_key());
    let text = String::with_capacity(source.len() * 2);
    let mut writer = Writer { source, at: 0, text, ranges: Vec::new() };
    writer.write_until(source.len() + 1, &mut edits.into_iter().peekable());
    writer.copy_until(source.len());
    Ok(Instrumented { text: writer.text, ranges: writer.ranges })
}

/// The condition that this mutant is active.
fn is_on(number: usize) -> String {
    format!("::mutant_switch::is_on({number})")
}

/// A change of the text for mutants.
struct Edit {
    /// What is replaced: an expression, or nothing.
    range: Range<usize>,
    number: usize,
    text: String,
}

impl Edit {
    /// The outer of two edits comes first, and edits of the same expression stand together.
    fn sort_key(&self) -> (usize, bool, Reverse<usize>, usize) {
        (self.range.start, !self.range.is_empty(), Reverse(self.range.end), self.number)
    }
}

struct Visitor<'a> {
    source: &'a str,
    by_place: HashMap<(Genre, usize), Vec<(usize, &'a str)>>,
    edits: Vec<Edit>,
}

impl<'a> Visitor<'a> {
    /// The mutants of a genre whose place is here, with their replacements.
    fn take(&mut self, genre: Genre, place: usize) -> Vec<(usize, &'a str)> {
        self.by_place.remove(&(genre, place)).unwrap_or_default()
    }

    fn edit(&mut self, range: Range<usize>, number: usize, text: String) {
        self.edits.push(Edit { range, number, text });
    }

    fn text(&self, of: &impl Spanned) -> &'a str {
        &self.source[of.span().byte_range()]
    }
}

/// Whether a condition binds variables, and so is no expression that could stand elsewhere.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl Visit<'_> for Visitor<'_> {
    fn visit_block(&mut self, block: &Block) {
        if let Some(first) = block.stmts.first() {
            let place = first.span().byte_range().start;
            for (number, value) in self.take(Genre::FnValue, place) {
                let text = format!("if {} {{ return {value}; }} ", is_on(number));
                self.edit(place..place, number, text);
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_expr_binary(&mut self, binary: &ExprBinary) {
        let ExprBinary { left, op, right, .. } = binary;
        // With `||` instead of `&&`, a condition that binds variables would not compile.
        if !has_let(left) && !has_let(right) {
            for (number, op) in self.take(Genre::BinaryOperator, op.span().byte_range().start) {
                let text = format!("{} {op} {}", self.text(left), self.text(right));
                self.edit(binary.span().byte_range(), number, text);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &ExprUnary) {
        for (number, _) in self.take(Genre::UnaryOperator, unary.op.span().byte_range().start) {
            let text = self.text(&unary.expr).to_owned();
            self.edit(unary.span().byte_range(), number, text);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &Arm) {
        let pattern = arm.pat.span().byte_range();
        let guard = arm.guard.as_ref().map(|(_, guard)| &**guard).filter(|guard| !has_let(guard));
        if let Some(guard) = guard {
            let range = guard.span().byte_range();
            for (number, value) in self.take(Genre::MatchArmGuard, range.start) {
                self.edit(range.clone(), number, value.to_owned());
            }
            for (number, _) in self.take(Genre::MatchArm, pattern.start) {
                self.edit(range.clone(), number, "false".to_owned());
            }
        } else if arm.guard.is_none() {
            for (number, _) in self.take(Genre::MatchArm, pattern.start) {
                self.edit(pattern.end..pattern.end, number, format!(" if !{}", is_on(number)));
            }
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expression: &ExprStruct) {
        let whole = expression.span().byte_range();
        for field in &expression.fields {
            let field = field.span().byte_range();
            for (number, _) in self.take(Genre::StructField, field.start) {
                let before = &self.source[whole.start..field.start];
                let after = self.source[field.end..whole.end].trim_start().trim_start_matches(',');
                self.edit(whole.clone(), number, format!("{before}{after}"));
            }
        }
        visit::visit_expr_struct(self, expression);
    }
}

struct Writer<'a> {
    source: &'a str,
    /// Up to where the source is written.
    at: usize,
    text: String,
    ranges: Vec<(Range<usize>, usize)>,
}

impl Writer<'_> {
    fn copy_until(&mut self, end: usize) {
        self.text.push_str(&self.source[self.at..end]);
        self.at = end;
    }

    fn write_mutant(&mut self, number: usize, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.ranges.push((start..self.text.len(), number));
    }

    /// Writes the source with the edits that start before `end`.
    fn write_until(&mut self, end: usize, edits: &mut Peekable<impl Iterator<Item = Edit>>) {
        while let Some(edit) = edits.next_if(|edit| edit.range.start < end) {
            let Edit { range, number, text } = edit;
            self.copy_until(range.start);
            if range.is_empty() {
                self.write_mutant(number, &text);
                continue;
            }
            self.text.push('(');
            let mut same = Some((number, text));
            while let Some((number, text)) = same {
                self.write_mutant(number, &format!("if {} {{ {text} }}", is_on(number)));
                self.text.push_str(" else ");
                same =
                    edits.next_if(|edit| edit.range == range).map(|edit| (edit.number, edit.text));
            }
            self.text.push_str("{ ");
            self.write_until(range.end, edits);
            self.copy_until(range.end);
            self.text.push_str(" })");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instruments a text in which each of these mutants, in the order of their numbers, is at the
    /// first place of a pattern.
    fn instrumented(source: &str, mutants: &[(Genre, &str, &str)]) -> String {
        let mutants: Vec<_> = mutants
            .iter()
            .map(|(genre, pattern, replacement)| {
                let before = &source[..source.find(pattern).unwrap()];
                let line = before.matches('\n').count() + 1;
                let column = before.chars().rev().take_while(|it| *it != '\n').count() + 1;
                Mutant::at(*genre, replacement, line, column)
            })
            .collect();
        let instrumented =
            instrument(source, &mutants.iter().enumerate().collect::<Vec<_>>()).unwrap();
        for (range, number) in &instrumented.ranges {
            assert!(instrumented.text[range.clone()].contains(&is_on(*number)));
        }
        instrumented.text.replace("::mutant_switch::", "")
    }

    #[test]
    fn value_of_a_function_is_returned_before_its_body() {
        let text = instrumented("fn é() -> u8 { 1; 2 }", &[(Genre::FnValue, "1", "0")]);
        assert_eq!(text, "fn é() -> u8 { if is_on(0) { return 0; } 1; 2 }");
    }

    #[test]
    fn operators_within_each_other_are_chosen_apart() {
        let source = "fn f() {\n    a + !b == c }";
        let text = instrumented(
            source,
            &[
                (Genre::BinaryOperator, "+", "-"),
                (Genre::UnaryOperator, "!", ""),
                (Genre::BinaryOperator, "==", "!="),
            ],
        );
        let inner = "(if is_on(0) { a - !b } else { a + (if is_on(1) { b } else { !b }) })";
        let expected =
            format!("fn f() {{\n    (if is_on(2) {{ a + !b != c }} else {{ {inner} == c }}) }}");
        assert_eq!(text, expected);
    }

    #[test]
    fn arm_is_removed_by_its_guard() {
        let source = "fn f() { match a { B => 1, C if d => 2, _ => 3 } }";
        let text = instrumented(
            source,
            &[
                (Genre::MatchArm, "B", ""),
                (Genre::MatchArm, "C", ""),
                (Genre::MatchArmGuard, "d =>", "true"),
            ],
        );
        let guard = "(if is_on(1) { false } else if is_on(2) { true } else { d })";
        let expected =
            format!("fn f() {{ match a {{ B if !is_on(0) => 1, C if {guard} => 2, _ => 3 }} }}");
        assert_eq!(text, expected);
    }

    #[test]
    fn field_is_removed_with_its_comma() {
        let source = "fn f() { A { b: 1, c: 2, ..d } }";
        let text = instrumented(source, &[(Genre::StructField, "b:", "")]);
        let expected =
            "fn f() { (if is_on(0) { A {  c: 2, ..d } } else { A { b: 1, c: 2, ..d } }) }";
        assert_eq!(text, expected);
    }

    #[test]
    fn condition_that_binds_variables_stays() {
        let source = "fn f() { if a && let Some(b) = c {} }";
        assert_eq!(instrumented(source, &[(Genre::BinaryOperator, "&&", "||")]), source);
    }
}
