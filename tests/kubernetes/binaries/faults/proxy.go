// What happens to one request: which rule it meets, and what that does to it.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"time"
)

type proxy struct {
	real  *httputil.ReverseProxy
	rules *rules
}

// The words the API server uses for a status, which clients look at.
var reasons = map[int]string{
	401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests",
	500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}

func (p *proxy) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	record := &record{Method: request.Method, Path: request.URL.RequestURI(), Agent: request.UserAgent(), Began: time.Now()}
	rule := p.rules.meet(record)
	counted := &statusWriter{ResponseWriter: response, record: record, rules: p.rules}
	if rule == nil {
		p.real.ServeHTTP(counted, request)
		return
	}
	select {
	case <-time.After(time.Duration(rule.Delay * float64(time.Second))):
	case <-request.Context().Done():
		return
	}
	switch {
	case rule.Status != 0:
		refuse(counted, rule)
	case rule.LoseAnswer || rule.Hold:
		// The real server does it, and the client is not told.
		unheard := &statusWriter{ResponseWriter: &deaf{header: http.Header{}}, record: record, rules: p.rules}
		p.real.ServeHTTP(unheard, request)
		if rule.Hold {
			p.rules.hold(request.Context())
		}
		// Ends the connection without an answer.
		panic(http.ErrAbortHandler)
	default:
		p.real.ServeHTTP(counted, request)
	}
}

func refuse(response http.ResponseWriter, rule *rule) {
	response.Header().Set("Content-Type", "application/json")
	if rule.RetryAfter > 0 {
		response.Header().Set("Retry-After", fmt.Sprint(rule.RetryAfter))
	}
	response.WriteHeader(rule.Status)
	json.NewEncoder(response).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": "a fault that a test asked for", "reason": reasons[rule.Status], "code": rule.Status,
	})
}

// statusWriter notes the status that goes to the client.
type statusWriter struct {
	http.ResponseWriter
	record *record
	rules  *rules
}

func (w *statusWriter) WriteHeader(status int) {
	w.rules.answered(w.record, status)
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets the proxy flush streams and take over connections.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// deaf takes an answer that nobody will hear.
type deaf struct{ header http.Header }

func (d *deaf) Header() http.Header             { return d.header }
func (d *deaf) Write(bytes []byte) (int, error) { return len(bytes), nil }
func (d *deaf) WriteHeader(int)                 {}
func (d *deaf) Flush()                          {}
