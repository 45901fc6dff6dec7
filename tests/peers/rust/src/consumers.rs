use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq_client_rust::{
    ClientResult, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, ConsumeOrderlyContext,
    ConsumeOrderlyStatus, DefaultLitePullConsumer, DefaultMQPushConsumer, MQPushConsumer,
    MessageListenerConcurrently, MessageListenerOrderly, MessageSelector,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use serde_json::{Value, json};

use crate::{Answer, Client, Driver, Options, config, emit, signer};

pub fn received(message: &MessageExt) -> Value {
    let body = message.body().unwrap_or_default();
    let text =
        |value: Option<_>| -> String { value.map(|value| format!("{value}")).unwrap_or_default() };
    json!({
        "topic": message.topic().as_str(),
        "queue": message.queue_id(),
        "offset": message.queue_offset(),
        "id": message.msg_id().as_str(),
        "tag": text(message.tags()),
        "keys": text(message.get_keys()),
        "times": message.reconsume_times(),
        "born": message.born_timestamp(),
        "body": String::from_utf8_lossy(&body[..body.len().min(200)]),
        "size": body.len(),
        "storedSize": message.store_size(),
        "at": SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
    })
}

fn selector(o: &Options) -> MessageSelector {
    match o.text("sql") {
        "" => MessageSelector::by_tag(o.text_or("tags", "*")),
        sql => MessageSelector::by_sql(sql),
    }
}

/// Reports what it gets and refuses each message the first `fails` times.
struct Listener(Options);

impl Listener {
    fn take(&self, messages: &[&MessageExt]) -> bool {
        for message in messages {
            let client = self.0.text("name");
            emit(json!({"event": "message", "client": client, "message": received(message)}));
        }
        let fails = self.0.number("fails", 0);
        messages
            .iter()
            .all(|message| i64::from(message.reconsume_times()) >= fails)
    }
}

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        Ok(match self.take(messages) {
            true => ConsumeConcurrentlyStatus::ConsumeSuccess,
            false => ConsumeConcurrentlyStatus::ReconsumeLater,
        })
    }
}

impl MessageListenerOrderly for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &mut ConsumeOrderlyContext,
    ) -> ClientResult<ConsumeOrderlyStatus> {
        Ok(match self.take(messages) {
            true => ConsumeOrderlyStatus::Success,
            false => ConsumeOrderlyStatus::SuspendCurrentQueueAMoment,
        })
    }
}

pub async fn start(driver: &Driver, o: &Options) -> Answer {
    let model = match o.text("model") {
        "BROADCASTING" => MessageModel::Broadcasting,
        _ => MessageModel::Clustering,
    };
    let mut consumer = DefaultMQPushConsumer::builder(driver.runtime.clone())
        .client_config(config(o))
        .consumer_group(o.text("group"))
        .message_model(model)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .max_reconsume_times(i32::try_from(o.number("maxTimes", 16))?)
        .rpc_hook(signer(o).map(|hook| hook as _))
        .build();
    consumer
        .subscribe_with_selector(o.text("topic"), Some(selector(o)))
        .await?;
    if o.is("orderly") {
        consumer.register_message_listener_orderly(Listener(o.clone()));
    } else {
        consumer.register_message_listener_concurrently(Listener(o.clone()));
    }
    consumer.start().await?;
    driver.started(o, Client::Consumer(consumer))
}

pub async fn start_puller(driver: &Driver, o: &Options) -> Answer {
    let consumer = DefaultLitePullConsumer::builder(driver.runtime.clone())
        .name_server_addr(o.text("namesrv"))
        .instance_name(o.text("name"))
        .consumer_group(o.text("group"))
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .build()?;
    // Its shutdown waits for the pulls under way, one queue after the other.
    consumer.set_broker_suspend_max_time_millis(500).await;
    consumer
        .subscribe_with_selector(o.text("topic"), Some(selector(o)))
        .await?;
    consumer.start().await?;
    driver.started(o, Client::Puller(consumer))
}

/// Polls until n messages came or the time is over.
pub async fn pull(driver: &Driver, o: &Options) -> Answer {
    let client = driver.client(o);
    let client = client.lock().await;
    let Client::Puller(consumer) = &*client else {
        return Err("not a lite pull consumer".into());
    };
    let end = Instant::now() + Duration::from_millis(o.number("wait", 20_000).try_into()?);
    let mut found = Vec::new();
    while (found.len() as i64) < o.number("n", 1) && Instant::now() < end {
        let messages = consumer.poll_with_timeout(1000).await;
        found.extend(messages.iter().map(received));
    }
    consumer.commit_all().await?;
    Ok(json!({"messages": found}))
}
