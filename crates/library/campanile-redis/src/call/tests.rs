//! Checks the header of each script against what is sent to it and read from it.

use std::collections::BTreeSet;
use std::time::Duration;

use campanile_core::{
    Command, FencingToken, Fingerprint, Grant, IdempotencyKey, Namespace, Operation, Owner, Reply,
    Retention, StoreKey,
};
use redis::{Arg, Value};

use super::Plan;
use crate::bucket::Buckets;
use crate::reply::decode_answers;
use crate::script::{Scripts, Verb};

/// What the header of a script says.
struct ScriptHeader {
    title: String,
    /// The names of the arguments before the items.
    leading: Vec<String>,
    item: String,
    /// The size of an item without the variable-length text at its end.
    item_bytes: usize,
    codes: BTreeSet<String>,
    code: String,
}

impl ScriptHeader {
    fn parse(text: &str) -> Self {
        let lines = || text.lines().skip_while(|line| line.starts_with("#!"));
        let comment_text = |line: &str| line.strip_prefix("--").map(str::trim).map(str::to_owned);
        let comments: Vec<String> = lines().map_while(comment_text).collect();
        let code: Vec<&str> = lines().skip(comments.len()).collect();

        let argument = |line: &String| {
            let (number, rest) = line.strip_prefix("ARGV[")?.split_once(']')?;
            Some((number.to_owned(), rest.split_whitespace().next()?.to_owned()))
        };
        let mut arguments: Vec<_> = comments.iter().filter_map(argument).collect();
        let (number, item) = arguments.pop().expect("ARGV");
        let leading: Vec<String> = (1..)
            .zip(arguments)
            .map(|(n, (number, name))| {
                assert_eq!(number, n.to_string());
                name
            })
            .collect();
        assert_eq!(number, format!("{}+", leading.len() + 1));

        let comment = comments.join(" ");
        assert!(comment.contains("KEYS "), "KEYS");
        let (before, returns) = comment.split_once("Returns").expect("Returns");
        let (_, size) = before.split_once('=').expect("the size of an item");
        Self {
            title: comments[0].clone(),
            leading,
            item,
            item_bytes: size.split_whitespace().next().unwrap().parse().expect("a number of bytes"),
            codes: codes(returns),
            code: code.join("\n"),
        }
    }
}

/// Extracts the words in capitals and quotes.
fn codes(text: &str) -> BTreeSet<String> {
    let is_code = |word: &&str| word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase());
    text.split('\'').skip(1).step_by(2).filter(is_code).map(str::to_owned).collect()
}

fn scripts() -> Vec<(Verb, Operation)> {
    let owner = Owner::new(7).unwrap();
    let grant = Grant { token: FencingToken::new(8).unwrap(), owner };
    let ttl = Duration::from_secs(30);
    let fingerprint = Some(Fingerprint::of(b"payload"));
    vec![
        (
            Verb::Acquire,
            Operation::Acquire {
                owner,
                ttl,
                max_attempts: 5,
                fingerprint,
                floor: FencingToken::ZERO,
                details: None,
            },
        ),
        (Verb::Renew, Operation::Renew { grant, ttl }),
        (
            Verb::Complete,
            Operation::Complete { grant, attempt: 1, fingerprint, reply: None, details: None },
        ),
        (Verb::Fail, Operation::Fail { grant, delay: ttl, last: false, error: "".into() }),
        (Verb::Release, Operation::Release { grant, ran: true }),
        (Verb::Cancel, Operation::Cancel { owner }),
        (Verb::GiveUp, Operation::GiveUp { grant, reason: "".into() }),
        (Verb::Redrive, Operation::Redrive { token: grant.token, force: false }),
        (
            Verb::RecordStep,
            Operation::RecordStep { grant, name: "charge".into(), result: "ok".into() },
        ),
    ]
}

fn batch(operation: &Operation, count: usize) -> Vec<Command> {
    let key = |n: usize| IdempotencyKey::new(n.to_string()).unwrap();
    let namespace = Namespace::try_from("n").unwrap();
    let command = |n| Command {
        key: StoreKey::new(namespace.clone(), &key(n)),
        operation: operation.clone(),
        retention: Retention::default(),
    };
    (0..count).map(command).collect()
}

fn script_header(verb: Verb) -> ScriptHeader {
    ScriptHeader::parse(Scripts::default().get(verb).text)
}

#[test]
fn script_header_names_each_argument() {
    for (verb, operation) in scripts() {
        let ScriptHeader { title, leading, item, item_bytes, code, .. } = script_header(verb);
        assert!(title.starts_with(&format!("{}: ", operation.name())), "{title}");
        // The script uses the names that its header gives.
        let names = code.lines().filter(|line| line.contains("ARGV")).collect::<String>();
        for name in &leading {
            assert!(
                names.contains(&format!("{name}, ")) || names.contains(&format!("{name} ")),
                "{name}"
            );
        }
        // Assigned in a line of its own, or as the last of several.
        let before = format!("BEFORE_{} = ", item.to_uppercase());
        let set = code.lines().find_map(|line| line.split_once(&before)).expect("it is set");
        let skipped = set.1.rsplit(", ").next();
        assert_eq!(skipped, Some(&*leading.len().to_string()), "{verb:?}: wrong number skipped");

        for count in [1, 3] {
            let batch = batch(&operation, count);
            let plan = Plan::new(&batch, &(0..count).collect::<Vec<_>>(), None);
            let [call] = &*plan.calls else { panic!("one call: {:?}", plan.calls) };
            let cmd = plan.encode(call, Buckets::DEFAULT, "EVALSHA", "hash");
            let args: Vec<&[u8]> = cmd
                .args_iter()
                .map(|arg| match arg {
                    Arg::Simple(bytes) => bytes,
                    _ => panic!("no cursor is sent"),
                })
                .collect();
            assert_eq!(args[2], count.to_string().as_bytes(), "{verb:?}");
            let (items, details) = args[3 + count + leading.len()..].split_at(count);
            let variable = match &operation {
                Operation::RecordStep { name, result, .. } => name.len() + 4 + result.len(),
                _ => 0,
            };
            for item in items {
                assert_eq!(item.len(), item_bytes + variable, "{verb:?}");
            }
            // One argument each, although there are none.
            let expected = if verb == Verb::Acquire { count } else { 0 };
            assert_eq!(details, vec![b""; expected], "{verb:?}");
        }
    }
}

#[test]
fn script_header_names_each_code_and_all_are_decoded() {
    const NOW: [u8; 8] = 1_800_000_000_000_000_u64.to_be_bytes();
    for (verb, operation) in scripts() {
        let ScriptHeader { codes: named, code, .. } = script_header(verb);
        let mut returned = codes(&code);
        // The commands and options of Redis, and its error code for another type.
        for word in ["GET", "SET", "MGET", "TIME", "NX", "PX", "WRONGTYPE"] {
            returned.remove(word);
        }
        assert_eq!(named, returned, "{verb:?}");
        for code in named {
            let reply = [
                Value::BulkString(NOW.to_vec()),
                Value::Int(1),
                Value::BulkString(code.clone().into_bytes()),
            ];
            let batch = batch(&operation, 1);
            let answers = decode_answers(Value::Array(reply.into()), verb, batch.iter()).unwrap();
            let is_corrupt = matches!(&answers[0], Ok(answer) if answer.reply == Reply::Corrupt);
            assert_eq!(is_corrupt, code == "CORRUPT", "{verb:?} {code}");
        }
    }
}

#[test]
fn only_acquire_and_record_step_may_fail_when_out_of_memory() {
    let texts = Scripts::default();
    for (verb, _) in scripts() {
        let text = &texts.get(verb).text;
        let may_fail = matches!(verb, Verb::Acquire | Verb::RecordStep);
        assert_eq!(text.starts_with("#!lua flags=allow-oom\n"), !may_fail, "{verb:?}");
    }
}

#[test]
fn functions_of_several_scripts_are_equal() {
    let body = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("local function {name}"))?;
        Some(rest.split_once("\nend\n").unwrap().0.to_owned())
    };
    for (name, count) in [("state_of", 9), ("details_end", 4), ("split_steps", 5)] {
        let texts = scripts().into_iter().map(|(verb, _)| Scripts::default().get(verb).text);
        let texts = texts.chain([campanile_lua::EXPIRE]);
        let bodies: Vec<_> = texts.filter_map(|text| body(text, name)).collect();
        assert_eq!(bodies.len(), count, "{name}");
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{name}");
    }
}
