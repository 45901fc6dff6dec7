package main

import (
	"context"
	"errors"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	rmqadmin "github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var pullers = map[string]rocketmq.PullConsumer{}

func received(m *primitive.MessageExt) options {
	body := m.Body
	if len(body) > 200 {
		body = body[:200]
	}
	return options{
		"topic":      m.Topic,
		"queue":      m.Queue.QueueId,
		"offset":     m.QueueOffset,
		"id":         m.MsgId,
		"offsetId":   m.OffsetMsgId,
		"tag":        m.GetTags(),
		"keys":       m.GetKeys(),
		"times":      m.ReconsumeTimes,
		"born":       m.BornTimestamp,
		"stored":     m.StoreTimestamp,
		"storeHost":  m.StoreHost,
		"body":       string(body),
		"size":       len(m.Body),
		"properties": m.GetProperties(),
		"at":         time.Now().UnixMilli(),
	}
}

func selector(o options) consumer.MessageSelector {
	if sql := o.text("sql", ""); sql != "" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: o.text("tags", "*")}
}

func startConsumer(o options) (options, error) {
	name := o.text("name", "")
	model := consumer.Clustering
	if o.text("model", "") == "BROADCASTING" {
		model = consumer.BroadCasting
	}
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{o.text("namesrv", "")}),
		consumer.WithGroupName(o.text("group", "")),
		consumer.WithInstance(name),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(o.is("orderly")),
		consumer.WithMaxReconsumeTimes(int32(o.number("maxTimes", 16))),
		consumer.WithCredentials(credentials(o)),
	)
	if err != nil {
		return nil, err
	}
	fails := int32(o.number("fails", 0))
	listener := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		refused := false
		for _, m := range messages {
			emit(options{"event": "message", "client": name, "message": received(m)})
			refused = refused || m.ReconsumeTimes < fails
		}
		if !refused {
			return consumer.ConsumeSuccess, nil
		}
		if o.is("orderly") {
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			concurrently.DelayLevelWhenNextConsume = o.number("level", 0)
		}
		return consumer.ConsumeRetryLater, nil
	}
	if err = c.Subscribe(o.text("topic", ""), selector(o), listener); err != nil {
		return nil, err
	}
	if err = c.Start(); err != nil {
		return nil, err
	}
	started(name, c.Shutdown)
	return options{}, nil
}

func startPuller(o options) (options, error) {
	name := o.text("name", "")
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{o.text("namesrv", "")}),
		consumer.WithGroupName(o.text("group", "")),
		consumer.WithInstance(name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithMaxReconsumeTimes(2),
	)
	if err == nil {
		err = c.Subscribe(o.text("topic", ""), selector(o))
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return nil, err
	}
	lock.Lock()
	pullers[name] = c
	lock.Unlock()
	started(name, c.Shutdown)
	return options{}, nil
}

// pull polls until n messages came or the time is over.
func pull(o options) (options, error) {
	lock.Lock()
	c := pullers[o.text("name", "")]
	lock.Unlock()
	found := []options{}
	end := time.Now().Add(time.Duration(o.number("wait", 20000)) * time.Millisecond)
	for len(found) < o.number("n", 1) && time.Now().Before(end) {
		result, err := c.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, m := range result.GetMsgList() {
			found = append(found, received(m))
		}
		c.ACK(context.Background(), result, consumer.ConsumeSuccess)
	}
	return options{"messages": found}, nil
}

func admin(o options) (options, error) {
	a, err := rmqadmin.NewAdmin(
		rmqadmin.WithResolver(primitive.NewPassthroughResolver([]string{o.text("namesrv", "")})))
	if err != nil {
		return nil, err
	}
	defer a.Close()
	ctx := context.Background()
	switch o.text("do", "") {
	case "create":
		return options{}, a.CreateTopic(ctx, rmqadmin.WithTopicCreate(o.text("topic", "")),
			rmqadmin.WithBrokerAddrCreate(o.text("broker", "")), rmqadmin.WithReadQueueNums(o.number("queues", 4)),
			rmqadmin.WithWriteQueueNums(o.number("queues", 4)))
	case "delete":
		return options{}, a.DeleteTopic(ctx, rmqadmin.WithTopicDelete(o.text("topic", "")),
			rmqadmin.WithBrokerAddrDelete(o.text("broker", "")))
	case "topics":
		list, err := a.FetchAllTopicList(ctx)
		if err != nil {
			return nil, err
		}
		return options{"topics": list.TopicList}, nil
	case "groups":
		all, err := a.GetAllSubscriptionGroup(ctx, o.text("broker", ""), 3*time.Second)
		if err != nil {
			return nil, err
		}
		names := []string{}
		for group := range all.SubscriptionGroupTable {
			names = append(names, group)
		}
		return options{"groups": names}, nil
	}
	return nil, errors.New("do is create, delete, topics or groups")
}
