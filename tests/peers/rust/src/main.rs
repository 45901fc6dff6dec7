//! The Rust client of Apache RocketMQ by remote control, like the Go driver beside it.
//!
//! Each line on stdin is a command as JSON, {"id":1,"command":"send",...}; each is answered by one
//! line {"re":1,"ok":true,...} or {"re":1,"ok":false,"error":"..."}. What consumers receive comes
//! as lines with an "event". The end of stdin stops every client.
#![recursion_limit = "256"] // the futures of the client are deep

mod consumers;
mod producers;

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};

use rocketmq_client_rust::{
    AclClientRPCHook, ClientConfig, ClientRuntime, ClientRuntimeConfig, DefaultLitePullConsumer,
    DefaultMQProducer, DefaultMQPushConsumer, SessionCredentials, TransactionMQProducer,
};
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;
use serde_json::{Value, json};

pub type Answer = Result<Value, Box<dyn Error + Send + Sync>>;

/// The fields of a command, with what they are when they are absent.
#[derive(Clone)]
pub struct Options(Value);

impl Options {
    pub fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    pub fn text_or<'a>(&'a self, key: &str, otherwise: &'a str) -> &'a str {
        self.0[key].as_str().unwrap_or(otherwise)
    }

    pub fn number(&self, key: &str, otherwise: i64) -> i64 {
        self.0[key].as_i64().unwrap_or(otherwise)
    }

    pub fn is(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap_or(false)
    }

    pub fn pairs(&self, key: &str) -> impl Iterator<Item = (&String, &str)> {
        let fields = self.0[key].as_object().into_iter().flatten();
        fields.map(|(name, value)| (name, value.as_str().unwrap_or_default()))
    }
}

pub enum Client {
    Producer(DefaultMQProducer),
    Transactions(TransactionMQProducer),
    Consumer(DefaultMQPushConsumer),
    Puller(DefaultLitePullConsumer),
}

/// All clients of this process by the names that the commands gave them.
pub struct Driver {
    pub runtime: Arc<ClientRuntime>,
    clients: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Client>>>>,
}

impl Driver {
    pub fn started(&self, o: &Options, client: Client) -> Answer {
        let client = Arc::new(tokio::sync::Mutex::new(client));
        self.clients
            .lock()
            .unwrap()
            .insert(o.text("name").to_owned(), client);
        Ok(json!({}))
    }

    pub fn client(&self, o: &Options) -> Arc<tokio::sync::Mutex<Client>> {
        self.clients.lock().unwrap()[o.text("name")].clone()
    }

    async fn stop(&self, name: &str) -> Answer {
        let client = self
            .clients
            .lock()
            .unwrap()
            .remove(name)
            .ok_or("no such client")?;
        match &mut *client.lock().await {
            Client::Producer(producer) => producer.shutdown().await,
            Client::Transactions(producer) => producer.shutdown().await,
            Client::Consumer(consumer) => consumer.shutdown().await,
            Client::Puller(consumer) => consumer.shutdown().await,
        }
        Ok(json!({}))
    }

    async fn answer(&self, o: Options) {
        let result = match o.text("command") {
            "producer" => producers::start(self, &o).await,
            "send" => producers::send(self, &o).await,
            "transaction" => producers::send_in_transaction(self, &o).await,
            "consumer" => consumers::start(self, &o).await,
            "puller" => consumers::start_puller(self, &o).await,
            "pull" => consumers::pull(self, &o).await,
            "stop" => self.stop(o.text("name")).await,
            other => Err(format!("no command {other:?}").into()),
        };
        let mut line = match result {
            Ok(fields) => fields,
            Err(error) => json!({"ok": false, "error": error.to_string()}),
        };
        line["re"] = o.0["id"].clone();
        line["ok"] = json!(line["ok"] != json!(false));
        emit(line);
    }
}

/// A client id of its own for each client, or the clients of a process would be one member.
pub fn config(o: &Options) -> ClientConfig {
    let mut config = ClientConfig::default();
    config.set_namesrv_addr(o.text("namesrv").into());
    config.set_instance_name(o.text("name").into());
    config
}

/// Signs each request, when the command has credentials.
pub fn signer(o: &Options) -> Option<Arc<AclClientRPCHook>> {
    let (key, secret) = (o.text("accessKey"), o.text("secretKey"));
    let signer = || AclClientRPCHook::new(SessionCredentials::with_keys(key, secret));
    (!key.is_empty()).then(|| Arc::new(signer()))
}

pub fn emit(event: Value) {
    writeln!(std::io::stdout().lock(), "{event}").expect("the reader is gone");
}

fn main() -> Result<(), Box<dyn Error>> {
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("driver"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let driver = Arc::new(Driver {
        runtime,
        clients: Mutex::default(),
    });
    let (lines, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let command = serde_json::from_str(&line).expect("a command is JSON");
            lines.send(Options(command)).expect("the driver ended");
        }
    });
    owner.block_on(async {
        while let Some(command) = commands.recv().await {
            let driver = driver.clone();
            tokio::spawn(async move { driver.answer(command).await });
        }
        let names: Vec<String> = driver.clients.lock().unwrap().keys().cloned().collect();
        for name in names {
            let _ = driver.stop(&name).await; // stopped by a command in the meantime
        }
        driver.runtime.shutdown().await;
    });
    owner.shutdown_runtime_blocking()?;
    Ok(())
}
