use std::any::Any;

use rocketmq_client_rust::{
    DefaultMQProducer, LocalTransactionState, SendResult, TransactionListener,
    TransactionMQProducer,
};
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use serde_json::{Value, json};

use crate::consumers::received;
use crate::{Answer, Client, Driver, Options, config, emit, signer};

pub async fn start(driver: &Driver, o: &Options) -> Answer {
    let name = o.text("name");
    let own_group = format!("p-{name}");
    let group = o.text_or("group", &own_group);
    if o.is("transactions") {
        let mut producer = TransactionMQProducer::builder(driver.runtime.clone())
            .client_config(config(o))
            .producer_group(group)
            .transaction_listener(Decisions(name.to_owned()))
            .build();
        producer.start().await?;
        return driver.started(o, Client::Transactions(producer));
    }
    let mut builder = DefaultMQProducer::builder(driver.runtime.clone())
        .client_config(config(o))
        .producer_group(group);
    if let Some(signer) = signer(o) {
        builder = builder.rpc_hook(signer);
    }
    let mut producer = builder.build();
    producer.start().await?;
    driver.started(o, Client::Producer(producer))
}

fn message(o: &Options, n: i64) -> Result<Message, Box<dyn std::error::Error + Send + Sync>> {
    let mut body = format!("{}-{n}", o.text_or("prefix", "m"));
    let rest = usize::try_from(o.number("size", 0))?.saturating_sub(body.len());
    body.push_str(&".".repeat(rest));
    let mut message = Message::builder().topic(o.text("topic")).body(body);
    let tags: Vec<&str> = o.text("tags").split(',').collect();
    if !tags[0].is_empty() {
        message = message.tags(tags[usize::try_from(n)? % tags.len()]);
    }
    if !o.text("keys").is_empty() {
        message = message.key(format!("{}-{n}", o.text("keys")));
    }
    if o.number("delay", 0) > 0 {
        message = message.delay_level(i32::try_from(o.number("delay", 0))?);
    }
    for (key, value) in o.pairs("properties") {
        message = message.raw_property(key.as_str(), value.replace("{n}", &n.to_string()))?;
    }
    Ok(message.build()?)
}

fn shown(result: &SendResult) -> Value {
    json!({
        "status": result.send_status.to_string(),
        "id": result.msg_id.as_deref(),
        "offsetId": result.offset_msg_id.as_deref(),
        "queue": result.message_queue.as_ref().map(|queue| queue.queue_id()),
        "offset": result.queue_offset,
    })
}

pub async fn send(driver: &Driver, o: &Options) -> Answer {
    let client = driver.client(o);
    let client = client.lock().await;
    let Client::Producer(producer) = &*client else {
        return Err("not a producer".into());
    };
    let messages = (0..o.number("n", 1))
        .map(|n| message(o, n))
        .collect::<Result<Vec<_>, _>>()?;
    let mut sent = Vec::new();
    match o.text_or("mode", "sync") {
        "batch" => sent.push(shown(&producer.send_batch(messages).await?)),
        "oneway" => {
            for message in messages {
                producer.send_oneway(message).await?;
            }
        }
        "async" => sent = send_async(producer, messages).await?,
        _ => {
            for message in messages {
                sent.push(shown(
                    &producer.send(message).await?.ok_or("no result of a send")?,
                ));
            }
        }
    }
    Ok(json!({"sent": sent}))
}

/// Starts all sends before it waits for the first; the results are in the order of the messages.
async fn send_async(
    producer: &DefaultMQProducer,
    messages: Vec<Message>,
) -> Result<Vec<Value>, Box<dyn std::error::Error + Send + Sync>> {
    let (results, mut open) = tokio::sync::mpsc::unbounded_channel();
    let mut sent = vec![Value::Null; messages.len()];
    for (n, message) in messages.into_iter().enumerate() {
        let results = results.clone();
        let done = move |result: Option<&SendResult>, error: Option<&_>| {
            let value = match result {
                Some(result) => shown(result),
                None => json!({"status": "ERROR", "error": format!("{error:?}")}),
            };
            results
                .send((n, value))
                .expect("nobody waits for the result");
        };
        producer.send_with_callback(message, done).await?;
    }
    for _ in 0..sent.len() {
        let (n, value) = open.recv().await.ok_or("a callback was dropped")?;
        sent[n] = value;
    }
    Ok(sent)
}

/// Does what the message's own properties say.
struct Decisions(String);

fn decide(message: &dyn MessageTrait, property: &'static str) -> LocalTransactionState {
    match message.property(&property.into()).as_deref() {
        Some("commit") => LocalTransactionState::CommitMessage,
        Some("rollback") => LocalTransactionState::RollbackMessage,
        _ => LocalTransactionState::Unknown,
    }
}

impl TransactionListener for Decisions {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        decide(message, "local")
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        emit(json!({"event": "check", "client": self.0, "message": received(message)}));
        decide(message, "check")
    }
}

pub async fn send_in_transaction(driver: &Driver, o: &Options) -> Answer {
    let client = driver.client(o);
    let client = client.lock().await;
    let Client::Transactions(producer) = &*client else {
        return Err("not a producer of transactions".into());
    };
    let mut sent = Vec::new();
    for n in 0..o.number("n", 1) {
        let mut message = message(o, n)?;
        message.put_property("local".into(), o.text_or("local", "commit").into());
        message.put_property("check".into(), o.text_or("check", "unknown").into());
        let result = producer
            .send_message_in_transaction::<(), _>(message, None)
            .await?;
        sent.push(shown(&result.send_result.ok_or("no result of a send")?));
    }
    Ok(json!({"sent": sent}))
}
