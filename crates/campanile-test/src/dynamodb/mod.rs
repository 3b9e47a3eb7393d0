//! Amazon's DynamoDB Local.

mod jars;
mod server;

pub use server::DynamoDbServer;
