package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var (
	producers    = map[string]rocketmq.Producer{}
	transactions = map[string]rocketmq.TransactionProducer{}
)

func credentials(o options) primitive.Credentials {
	return primitive.Credentials{AccessKey: o.text("accessKey", ""), SecretKey: o.text("secretKey", "")}
}

func startProducer(o options) (options, error) {
	name := o.text("name", "")
	settings := []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{o.text("namesrv", "")}),
		producer.WithGroupName(o.text("group", "p-"+name)),
		producer.WithInstanceName(name),
		producer.WithRetry(2),
		producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()),
		producer.WithCredentials(credentials(o)),
	}
	if o.is("transactions") {
		made, err := rocketmq.NewTransactionProducer(decisions{name}, settings...)
		if err == nil {
			err = made.Start()
		}
		lock.Lock()
		transactions[name] = made
		lock.Unlock()
		started(name, func() error { return made.Shutdown() })
		return options{}, err
	}
	made, err := rocketmq.NewProducer(settings...)
	if err == nil {
		err = made.Start()
	}
	lock.Lock()
	producers[name] = made
	lock.Unlock()
	started(name, func() error { return made.Shutdown() })
	return options{}, err
}

func message(o options, n int) *primitive.Message {
	body := []byte(fmt.Sprintf("%s-%d", o.text("prefix", "m"), n))
	if rest := o.number("size", 0) - len(body); rest > 0 {
		body = append(body, strings.Repeat(".", rest)...)
	}
	m := primitive.NewMessage(o.text("topic", ""), body)
	if tags := strings.Split(o.text("tags", ""), ","); tags[0] != "" {
		m.WithTag(tags[n%len(tags)])
	}
	if keys := o.text("keys", ""); keys != "" {
		m.WithKeys([]string{keys + "-" + strconv.Itoa(n)})
	}
	if level := o.number("delay", 0); level > 0 {
		m.WithDelayTimeLevel(level)
	}
	if properties, ok := o["properties"].(map[string]any); ok {
		for key, value := range properties {
			m.WithProperty(key, strings.ReplaceAll(value.(string), "{n}", strconv.Itoa(n)))
		}
	}
	return m
}

func shown(result *primitive.SendResult) options {
	return options{
		"status":   map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[result.Status],
		"id":       result.MsgID,
		"offsetId": result.OffsetMsgID,
		"queue":    result.MessageQueue.QueueId,
		"offset":   result.QueueOffset,
	}
}

func send(o options) (options, error) {
	lock.Lock()
	p := producers[o.text("name", "")]
	lock.Unlock()
	count := o.number("n", 1)
	messages := make([]*primitive.Message, count)
	for n := range messages {
		messages[n] = message(o, o.number("first", 0)+n)
	}
	ctx := context.Background()
	results := make([]options, 0, count)
	switch o.text("mode", "sync") {
	case "sync":
		for _, m := range messages {
			result, err := p.SendSync(ctx, m)
			if err != nil {
				return nil, err
			}
			results = append(results, shown(result))
		}
	case "batch":
		result, err := p.SendSync(ctx, messages...)
		if err != nil {
			return nil, err
		}
		results = append(results, shown(result))
	case "oneway":
		for _, m := range messages {
			if err := p.SendOneWay(ctx, m); err != nil {
				return nil, err
			}
		}
	case "async":
		results = make([]options, count)
		var open sync.WaitGroup
		open.Add(count)
		for n, m := range messages {
			n := n
			err := p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				defer open.Done()
				if err != nil {
					results[n] = options{"status": "ERROR", "error": err.Error()}
					return
				}
				results[n] = shown(result)
			}, m)
			if err != nil {
				return nil, err
			}
		}
		open.Wait()
	}
	return options{"sent": results}, nil
}

// decisions does what the message's own properties say.
type decisions struct{ client string }

func decide(m *primitive.Message, property string) primitive.LocalTransactionState {
	switch m.GetProperty(property) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d decisions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return decide(m, "local")
}

func (d decisions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	emit(options{"event": "check", "client": d.client, "message": received(m)})
	return decide(&m.Message, "check")
}

func sendInTransaction(o options) (options, error) {
	lock.Lock()
	p := transactions[o.text("name", "")]
	lock.Unlock()
	results := []options{}
	for n := 0; n < o.number("n", 1); n++ {
		m := message(o, n)
		m.WithProperty("local", o.text("local", "commit"))
		m.WithProperty("check", o.text("check", "unknown"))
		result, err := p.SendMessageInTransaction(context.Background(), m)
		if err != nil {
			return nil, err
		}
		results = append(results, shown(result.SendResult))
	}
	return options{"sent": results}, nil
}

func request(o options) (options, error) {
	lock.Lock()
	p := producers[o.text("name", "")]
	lock.Unlock()
	reply, err := p.Request(context.Background(), 10*time.Second, message(o, 0))
	if err != nil {
		return nil, err
	}
	return options{"reply": string(reply.Body)}, nil
}
