// The rules a test has set, how often each was met, and the record of all requests. The first rule that fits a request
// and is not used up decides.
package main

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"sync"
	"time"
)

// rule says which requests it means and what becomes of them; zero values mean "any" and "nothing".
type rule struct {
	// Methods and Path: a request fits if its method is named and the expression is found in path and query.
	Methods []string `json:"methods"`
	Path    string   `json:"path"`
	// Skip: so many that fit are left alone first. Times: so many are then hit; 0: all.
	Skip  int `json:"skip"`
	Times int `json:"times"`
	// Status is answered instead of asking the real server, with Retry-After where that is not 0.
	Status     int `json:"status"`
	RetryAfter int `json:"retry_after"`
	// Delay: seconds before anything else is done.
	Delay float64 `json:"delay"`
	// LoseAnswer: done by the real server, but the connection ends without an answer. Hold: only once told so.
	LoseAnswer bool `json:"lose_answer"`
	Hold       bool `json:"hold"`

	expression *regexp.Regexp
	met        int
}

type record struct {
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Agent  string    `json:"agent"`
	Status int       `json:"status"`
	Hit    bool      `json:"hit"`
	Began  time.Time `json:"began"`
}

type rules struct {
	lock    sync.Mutex
	list    []*rule
	records []*record
	held    int
	release chan struct{}
}

func newRules() *rules { return &rules{records: []*record{}, release: make(chan struct{})} }

func (r *rules) meet(met *record) *rule {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.records = append(r.records, met)
	for _, rule := range r.list {
		if !rule.fits(met) {
			continue
		}
		rule.met++
		if rule.met > rule.Skip && (rule.Times == 0 || rule.met <= rule.Skip+rule.Times) {
			met.Hit = true
			return rule
		}
	}
	return nil
}

func (r *rule) fits(met *record) bool {
	if !r.expression.MatchString(met.Path) {
		return false
	}
	for _, method := range r.Methods {
		if method == met.Method {
			return true
		}
	}
	return len(r.Methods) == 0
}

func (r *rules) answered(record *record, status int) {
	r.lock.Lock()
	defer r.lock.Unlock()
	record.Status = status
}

// hold keeps a request until the test lets all of them go, or the client has gone.
func (r *rules) hold(client context.Context) {
	r.lock.Lock()
	r.held++
	release := r.release
	r.lock.Unlock()
	select {
	case <-release:
	case <-client.Done():
	}
	r.lock.Lock()
	r.held--
	r.lock.Unlock()
}

// handler is what tests talk to: PUT /rules, GET and DELETE /requests, GET and DELETE /held.
func (r *rules) handler() http.Handler {
	routes := http.NewServeMux()
	locked := func(pattern string, serve func(http.ResponseWriter, *http.Request)) {
		routes.HandleFunc(pattern, func(response http.ResponseWriter, request *http.Request) {
			r.lock.Lock()
			defer r.lock.Unlock()
			serve(response, request)
		})
	}
	locked("PUT /rules", func(response http.ResponseWriter, request *http.Request) {
		var list []*rule
		decoder := json.NewDecoder(request.Body)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&list); err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		for _, rule := range list {
			expression, err := regexp.Compile(rule.Path)
			if err != nil {
				http.Error(response, err.Error(), http.StatusBadRequest)
				return
			}
			rule.expression = expression
		}
		r.list = list
	})
	locked("GET /requests", func(response http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(response).Encode(r.records)
	})
	locked("DELETE /requests", func(http.ResponseWriter, *http.Request) { r.records = []*record{} })
	locked("GET /held", func(response http.ResponseWriter, _ *http.Request) { json.NewEncoder(response).Encode(r.held) })
	locked("DELETE /held", func(http.ResponseWriter, *http.Request) {
		close(r.release)
		r.release = make(chan struct{})
	})
	return routes
}
