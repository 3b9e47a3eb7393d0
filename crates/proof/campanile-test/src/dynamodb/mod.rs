//! Amazon's DynamoDB Local.

mod server;

pub use server::DynamoDbServer;
