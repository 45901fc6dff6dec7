// The Go client of Apache RocketMQ by remote control, like the Java driver beside it.
//
// Each line on stdin is a command as JSON, {"id":1,"command":"send",...}; each is answered by one
// line {"re":1,"ok":true,...} or {"re":1,"ok":false,"error":"..."}. What consumers receive comes as
// lines with an "event". The end of stdin stops every client.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type options map[string]any

func (o options) text(key, otherwise string) string {
	if value, ok := o[key].(string); ok {
		return value
	}
	return otherwise
}

func (o options) number(key string, otherwise int) int {
	if value, ok := o[key].(float64); ok {
		return int(value)
	}
	return otherwise
}

func (o options) is(key string) bool {
	value, _ := o[key].(bool)
	return value
}

type command func(options) (options, error)

var (
	commands = map[string]command{
		"producer":    startProducer,
		"send":        send,
		"transaction": sendInTransaction,
		"request":     request,
		"consumer":    startConsumer,
		"puller":      startPuller,
		"pull":        pull,
		"admin":       admin,
		"stop":        stop,
	}
	output sync.Mutex
	lock   sync.Mutex
	stops  = map[string]func() error{}
)

func emit(event options) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func started(name string, how func() error) {
	lock.Lock()
	defer lock.Unlock()
	stops[name] = how
}

func stop(o options) (options, error) {
	lock.Lock()
	how := stops[o.text("name", "")]
	delete(stops, o.text("name", ""))
	lock.Unlock()
	return options{}, how()
}

func answer(o options) {
	result, err := commands[o.text("command", "")](o)
	if err != nil {
		emit(options{"re": o["id"], "ok": false, "error": err.Error()})
		return
	}
	result["re"], result["ok"] = o["id"], true
	emit(result)
}

func main() {
	rlog.SetLogLevel("warn")
	rlog.SetOutputPath(os.Args[1])
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o options
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			panic(err)
		}
		go answer(o)
	}
	for name := range stops {
		stop(options{"name": name})
	}
}
