package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// jetStream is NATS JetStream by nats.go: a stream in files per topic, connections of its own for
// each sender and reader. Each reader reads the whole stream with a consumer of its own.
type jetStream struct{ url string }

func natsClient(port string) client { return jetStream{"nats://127.0.0.1:" + port} }

func (j jetStream) readers() int { return 1 }

func (j jetStream) connect(options ...jetstream.JetStreamOpt) (*nats.Conn, jetstream.JetStream, error) {
	connection, err := nats.Connect(j.url, nats.NoReconnect())
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(connection, options...)
	return connection, js, err
}

func (j jetStream) prepare(topic string) error {
	connection, js, err := j.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = js.CreateOrUpdateStream(context.Background(), jetstream.StreamConfig{
		Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage,
	})
	return err
}

func (j jetStream) first() error {
	if err := j.prepare("Start"); err != nil {
		return err
	}
	connection, js, err := j.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = js.Publish(context.Background(), "Start", []byte("first"))
	return err
}

func (j jetStream) sender(topic string, _ int) (func(int, int, []byte, *figures) error, error) {
	connection, js, err := j.connect()
	if err != nil {
		return nil, err
	}
	return func(share, window int, body []byte, f *figures) error {
		defer connection.Close()
		if window == 1 {
			return publishOneByOne(js, topic, share, body, f)
		}
		return publishWindow(js, topic, share, window, body, connection.StatusChanged(nats.CLOSED), f)
	}, nil
}

func publishOneByOne(js jetstream.JetStream, topic string, share int, body []byte, f *figures) error {
	for range share {
		begun := time.Now()
		ack, err := js.Publish(context.Background(), topic, body)
		if err != nil {
			return err
		} else if ack.Stream != topic || ack.Duplicate {
			return fmt.Errorf("unexpected acknowledgement %+v", ack)
		}
		f.good(1, time.Since(begun))
	}
	return nil
}

type pending struct {
	ack   jetstream.PubAckFuture
	begun time.Time
}

// publishWindow keeps window asynchronous publications under way and checks them in their order.
func publishWindow(js jetstream.JetStream, topic string, share, window int, body []byte,
	gone <-chan nats.Status, f *figures) error {
	underWay := make(chan pending, window)
	settle := func(one pending) error {
		select {
		case ack := <-one.ack.Ok():
			if ack.Stream != topic || ack.Duplicate {
				return fmt.Errorf("unexpected acknowledgement %+v", ack)
			}
			f.good(1, time.Since(one.begun))
			return nil
		case err := <-one.ack.Err():
			return err
		case <-gone:
			return nats.ErrConnectionClosed
		}
	}
	for range share {
		if len(underWay) == window {
			if err := settle(<-underWay); err != nil {
				return err
			}
		}
		begun := time.Now()
		ack, err := js.PublishAsync(topic, body)
		if err != nil {
			return err
		}
		underWay <- pending{ack, begun}
	}
	for len(underWay) > 0 {
		if err := settle(<-underWay); err != nil {
			return err
		}
	}
	return nil
}

func (j jetStream) reader(topic string, _, most int) (func(int, func(int) bool) (int, error), error) {
	connection, js, err := j.connect()
	if err != nil {
		return nil, err
	}
	_ = connection // lives as long as its reader may be called
	return func(size int, enough func(int) bool) (int, error) {
		consumer, err := js.CreateConsumer(context.Background(), topic, jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
			MemoryStorage: true,
		})
		if err != nil {
			return 0, err
		}
		left := int(consumer.CachedInfo().NumPending)
		for n := 0; ; {
			if n == left || enough(0) {
				return n, js.DeleteConsumer(context.Background(), topic, consumer.CachedInfo().Name)
			}
			got, err := fetch(consumer, min(most, left-n), n, size)
			if err != nil {
				return n, err
			}
			n += got
			enough(got)
		}
	}, nil
}

// fetch is one request; sequences must follow each other and bodies have their size.
func fetch(consumer jetstream.Consumer, most, before, size int) (int, error) {
	batch, err := consumer.Fetch(most, jetstream.FetchMaxWait(10*time.Second))
	if err != nil {
		return 0, err
	}
	got := 0
	for message := range batch.Messages() {
		got++
		facts, err := message.Metadata()
		if err != nil {
			return got, err
		}
		if facts.Sequence.Stream != uint64(before+got) || len(message.Data()) != size {
			return got, fmt.Errorf("not what was sent: %d after %d", facts.Sequence.Stream, before)
		}
	}
	if batch.Error() == nil && got == 0 {
		return 0, fmt.Errorf("nothing within 10 s after message %d", before)
	}
	return got, batch.Error()
}
