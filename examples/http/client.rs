//! A client that repeats itself, and looks at what it is answered.

use std::net::SocketAddr;

use campanile::BoxError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Terminal;

/// Tries what the draft speaks of, and shows it.
///
/// # Errors
/// If an answer is not what the draft asks for, or a payment ran twice.
pub(crate) async fn play(server: SocketAddr, terminal: &Terminal) -> Result<(), BoxError> {
    let [key, another] = [(); 2].map(|()| fastrand::u64(..));

    // While somebody else has the terminal, the first is at work.
    let taken = terminal.free.acquire().await?;
    let first = tokio::spawn(pay(server, Some(key), 100));
    terminal.begun.until(1, |_| true).await;
    let meanwhile = pay(server, Some(key), 100).await?;
    drop(taken);
    let first = first.await??;
    let repeat = pay(server, Some(key), 100).await?;
    let other = pay(server, Some(key), 200).await?;
    let keyless = pay(server, None, 100).await?;
    // Nobody gets the terminal any more.
    terminal.free.close();
    let failed = pay(server, Some(another), 300).await?;

    let rows = [
        ("a payment", 201, &first),
        ("the same while it is at work", 409, &meanwhile),
        ("the same again", 201, &repeat),
        ("another payment under its key", 422, &other),
        ("a payment without a key", 400, &keyless),
        ("a payment that cannot be charged", 503, &failed),
    ];
    for (what, _, (status, body)) in &rows {
        println!("{what:<34}{status}  {body}");
    }
    let begun = terminal.begun.take();
    println!("the handler began with {begun:?} cents");
    let expected = rows.iter().all(|(_, expected, answer)| answer.0 == *expected);
    if !expected || repeat != first || begun != [100, 300] {
        return Err("an answer is not what the draft asks for, or a payment ran twice".into());
    }
    Ok(())
}

/// Posts a payment, and gives the answer's status and body.
async fn pay(server: SocketAddr, key: Option<u64>, cents: u64) -> Result<(u16, String), BoxError> {
    let key = key.map(|key| format!("idempotency-key: \"{key:016x}\"\r\n")).unwrap_or_default();
    let json = format!(r#"{{"cents":{cents}}}"#);
    let request = format!(
        "POST /payments HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n{key}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    );
    let mut connection = TcpStream::connect(server).await?;
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer's head has no end")?;
    let status = head.split(' ').nth(1).ok_or("the answer has no status")?;
    Ok((status.parse()?, body.to_owned()))
}
