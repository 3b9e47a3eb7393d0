//! A client that repeats requests, disconnects, and checks the responses.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use campanile::BoxError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::terminal::Terminal;

/// Tries the cases of the draft, and some more, and prints the responses.
///
/// # Errors
/// Fails if a response is not the expected one, or a payment ran twice.
pub(crate) async fn run_cases(server: SocketAddr, terminal: &Terminal) -> Result<(), BoxError> {
    let pay = |cents| Post { server, key: Some(fastrand::u64(..)), cents, has_content_type: true };
    let mut rows = Rows(Vec::new());

    // The first request is in progress as long as the terminal is taken.
    let taken = terminal.acquire().await;
    let payment = pay(100);
    let first = tokio::spawn(payment.answer());
    terminal.begun.wait_for(1, |_| true).await;
    let meanwhile = payment.answer().await?;
    let has_retry_after = meanwhile.retry_after == Some(1);
    rows.add("the same while it is in progress", 409, meanwhile);
    drop(taken);
    let first = first.await??;
    let repeat = payment.answer().await?;
    let replayed = repeat == first;
    rows.add("a payment", 201, first);
    rows.add("the same again", 201, repeat);
    rows.add("another under its key", 422, Post { cents: 200, ..payment }.answer().await?);
    rows.add("one without a key", 400, Post { key: None, ..payment }.answer().await?);

    let taken = terminal.acquire().await;
    let payment = pay(110);
    let connection = payment.send().await?;
    terminal.begun.wait_for(2, |_| true).await;
    disconnect(connection).await?;
    rows.add("the same after its client has left", 409, payment.answer().await?);
    drop(taken);
    let settled = timeout(Duration::from_secs(5), repeat_until_settled(payment)).await??;
    rows.add("the same later", 201, settled);

    let payment = pay(120);
    let without_content_type = Post { has_content_type: false, ..payment };
    rows.add("one without its content type", 415, without_content_type.answer().await?);
    rows.add("the same with it", 201, payment.answer().await?);

    let payment = pay(90_000);
    rows.add("one that is declined", 402, payment.answer().await?);
    rows.add("the same again, tried again", 402, payment.answer().await?);
    // Print panics on one line, without a backtrace.
    std::panic::set_hook(Box::new(|panic| println!("{}", panic.to_string().replace('\n', " "))));
    rows.add("one that makes the handler panic", 500, pay(0).answer().await?);
    terminal.close();
    rows.add("one while the terminal is down", 502, pay(130).answer().await?);

    let all_expected = rows.show();
    let begun = terminal.begun.take();
    println!("the handler began with {begun:?} cents");
    if !all_expected
        || !has_retry_after
        || !replayed
        || begun != [100, 110, 120, 90_000, 90_000, 0, 130]
    {
        return Err("unexpected response, or a payment ran twice".into());
    }
    Ok(())
}

/// Closes the sending side, and waits until the server has closed the connection without a
/// response. By then the server has dropped the request's future.
async fn disconnect(mut connection: TcpStream) -> Result<(), BoxError> {
    connection.shutdown().await?;
    match connection.read(&mut [0]).await? {
        0 => Ok(()),
        _ => Err("got a response although the terminal is taken".into()),
    }
}

/// Repeats the request until the first one is no longer in progress.
async fn repeat_until_settled(payment: Post) -> Result<Answer, BoxError> {
    loop {
        let answer = payment.answer().await?;
        if answer.status != 409 {
            return Ok(answer);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// A payment to post.
#[derive(Clone, Copy)]
struct Post {
    server: SocketAddr,
    key: Option<u64>,
    cents: u64,
    /// Whether the request has a content type.
    has_content_type: bool,
}

impl Post {
    async fn send(self) -> Result<TcpStream, BoxError> {
        let Self { server, key, cents, has_content_type } = self;
        let key = key.map(|key| format!("idempotency-key: \"{key:016x}\"\r\n")).unwrap_or_default();
        let content_type = if has_content_type { "content-type: application/json\r\n" } else { "" };
        let json = format!(r#"{{"cents":{cents}}}"#);
        let request = format!(
            "POST /payments HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\
             {key}{content_type}content-length: {}\r\n\r\n{json}",
            json.len()
        );
        let mut connection = TcpStream::connect(server).await?;
        connection.write_all(request.as_bytes()).await?;
        Ok(connection)
    }

    async fn answer(self) -> Result<Answer, BoxError> {
        let mut answer = String::new();
        self.send().await?.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("the response head is cut off")?;
        let status = head.split(' ').nth(1).ok_or("the response has no status")?;
        let field = |name| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Ok(Answer {
            status: status.parse()?,
            content_type: field("content-type:").map(Into::into),
            retry_after: field("retry-after:").map(str::parse).transpose()?,
            body: body.into(),
        })
    }
}

/// The parts of a response that the client checks.
#[derive(PartialEq)]
struct Answer {
    status: u16,
    content_type: Option<String>,
    /// In seconds.
    retry_after: Option<u64>,
    body: String,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, content_type, retry_after, body } = self;
        write!(f, "{status}  {:<26}{body}", content_type.as_deref().unwrap_or_default())?;
        match retry_after {
            Some(seconds) => write!(f, " (retry after {seconds} s)"),
            None => Ok(()),
        }
    }
}

/// The responses, each with a description of its request and the expected status.
struct Rows(Vec<(&'static str, u16, Answer)>);

impl Rows {
    fn add(&mut self, what: &'static str, expected: u16, answer: Answer) {
        self.0.push((what, expected, answer));
    }

    /// Prints the responses, and checks that each has the expected status.
    fn show(&self) -> bool {
        for (what, _, answer) in &self.0 {
            println!("{what:<36}{answer}");
        }
        self.0.iter().all(|(_, expected, answer)| answer.status == *expected)
    }
}
