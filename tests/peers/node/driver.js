// The Node client ali-ons by remote control, like the Java and Go drivers beside it.
//
// Each line on stdin is a command as JSON, {"id":1,"command":"send",...}, and is answered by one line
// {"re":1,"ok":true,...} or {"re":1,"ok":false,"error":"..."}. What consumers receive comes as lines
// with an "event". The end of stdin ends the process.
'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const clients = new Map();
const quiet = { info() {}, debug() {}, warn: log, error: log };

function log(...words) {
  process.stderr.write(words.map(String).join(' ') + '\n');
}

function emit(event) {
  process.stdout.write(JSON.stringify(event) + '\n');
}

function settings(options) {
  return {
    nameSrv: options.namesrv,
    ...(options.accessKey ? { accessKey: options.accessKey, secretKey: options.secretKey } : {}),
    instanceName: options.name,
    clientIP: '127.0.0.1',
    httpclient: {}, // demanded, though only used to ask Aliyun for addresses
    logger: quiet,
    rebalanceInterval: 2000,
    pollNameServerInteval: 5000,
  };
}

async function producer(options) {
  const client = new Producer({ ...settings(options), producerGroup: options.group || `p-${options.name}` });
  client.on('error', error => log('producer:', error));
  await client.ready();
  clients.set(options.name, client);
  return {};
}

function message(options, n) {
  const tags = options.tags ? options.tags.split(',') : [null];
  const text = `${options.prefix || 'm'}-${n}`;
  const made = new Message(options.topic, tags[n % tags.length], text.padEnd(options.size || 0, '.'));
  if (options.keys) {
    made.keys = [`${options.keys}-${n}`];
  }
  if (options.delay) {
    made.delayTimeLevel = options.delay;
  }
  for (const [key, value] of Object.entries(options.properties || {})) {
    made.properties[key] = value.replace('{n}', String(n));
  }
  return made;
}

async function send(options) {
  const sent = [];
  const first = options.first || 0;
  for (let n = first; n < first + (options.n || 1); n++) {
    const result = await clients.get(options.name).send(message(options, n));
    sent.push({
      status: result.sendStatus,
      offsetId: result.msgId,
      queue: result.messageQueue.queueId,
      offset: Number(result.queueOffset),
    });
  }
  return { sent };
}

async function consumer(options) {
  const client = new Consumer({
    ...settings(options),
    consumerGroup: options.group,
    isBroadcast: options.model === 'BROADCASTING',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  client.on('error', error => log('consumer:', error));
  const filter = options.sql ? { expressionType: 'SQL92', subString: options.sql } : options.tags || '*';
  client.subscribe(options.topic, filter, async received => {
    emit({
      event: 'message',
      client: options.name,
      message: {
        topic: received.topic,
        queue: received.queueId,
        offset: Number(received.queueOffset),
        id: received.msgId,
        tag: received.tags,
        keys: received.keys,
        times: received.reconsumeTimes,
        born: received.bornTimestamp,
        stored: received.storeTimestamp,
        body: received.body.toString().slice(0, 200),
        size: received.body.length,
        properties: received.properties,
        at: Date.now(),
      },
    });
    if (received.reconsumeTimes < (options.fails || 0)) {
      throw new Error('refused, as the test asked'); // goes back to the broker
    }
  });
  await client.ready();
  clients.set(options.name, client);
  return {};
}

async function stop(options) {
  await clients.get(options.name).close();
  clients.delete(options.name);
  return {};
}

const commands = { producer, send, consumer, stop };

async function answer(line) {
  const options = JSON.parse(line);
  try {
    emit({ re: options.id, ok: true, ...(await commands[options.command](options)) });
  } catch (error) {
    emit({ re: options.id, ok: false, error: String(error) });
  }
}

readline.createInterface({ input: process.stdin }).on('line', answer).on('close', () => process.exit(0));
