package api

import (
	"context"
	_ "embed"
	"net/http"
	urlpath "path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
)

//go:embed openapi.yaml
var openAPI []byte

// A route is one operation of the file openapi.yaml.
type route struct {
	operation, method, path string
	needs                   scope
	// application says that the operation is served to applications, too.
	application bool
	// limit bounds the operation's time. 0: it bounds its time itself, or asks nobody.
	limit time.Duration
	serve func(s *Server, w http.ResponseWriter, r *http.Request, resource fence.Resource) error
}

// storeTime bounds the answers of the lease store and the database to one operation.
const storeTime = 10 * time.Second

var routes = []route{
	{"acquire", http.MethodPost, "/v1/resources/{resource}/acquire", scopeLease, true, 0, (*Server).acquire},
	{"renew", http.MethodPost, "/v1/resources/{resource}/renew", scopeLease, true, storeTime, (*Server).renew},
	{"release", http.MethodPost, "/v1/resources/{resource}/release", scopeLease, true, storeTime, (*Server).release},
	{"revoke", http.MethodPost, "/v1/resources/{resource}/revoke", scopeOperate, false, storeTime, (*Server).revoke},
	{"declare", http.MethodPost, "/v1/resources/{resource}/declare", scopeOperate, false, storeTime, (*Server).declare},
	{"change", http.MethodPatch, "/v1/resources/{resource}", scopeOperate, false, storeTime, (*Server).change},
	{"check", http.MethodPost, "/v1/check", scopeLease, true, storeTime, (*Server).check},
	{"begin_effect", http.MethodPost, "/v1/effects", scopeLease, true, storeTime, (*Server).beginEffect},
	{"end_effect", http.MethodDelete, "/v1/effects/{effect}", scopeLease, true, 0, (*Server).endEffect},
	{"list", http.MethodGet, "/v1/resources", scopeRead, false, storeTime, (*Server).list},
	{"show", http.MethodGet, "/v1/resources/{resource}", scopeRead, true, storeTime, (*Server).show},
	{"history", http.MethodGet, "/v1/history", scopeRead, false, storeTime, (*Server).history},
	{"events", http.MethodGet, "/v1/events", scopeRead, false, 0, (*Server).events},
	{"series", http.MethodGet, "/v1/series", scopeRead, false, 0, (*Server).series},
	{"guards", http.MethodGet, "/v1/guards", scopeRead, false, storeTime, (*Server).guards},
	{"rows", http.MethodGet, "/v1/rows", scopeRead, false, storeTime, (*Server).rows},
	{"doctor", http.MethodGet, "/v1/doctor", scopeRead, false, 0, (*Server).doctor},
	{"whoami", http.MethodGet, "/v1/whoami", scopeRead, true, 0, (*Server).whoami},
	{"about", http.MethodGet, "/v1/about", scopeRead, false, 0, (*Server).about},
	{"openapi", http.MethodGet, "/v1/openapi.yaml", scopeRead, true, 0, (*Server).file},
}

// answerTime bounds an answer, apart from a wait: the store, the seal and the
// caller's network. It is longer than preempt_after, unless a resource has a long one.
const answerTime = 20 * time.Second

func (s *Server) mux(at endpoint) http.Handler {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, route := range routes {
		mux.Handle(route.method+" "+route.path, s.handler(at, route.operation, at.needs(route), func(w http.ResponseWriter, r *http.Request) error {
			return s.serve(at, route, w, r)
		}))
		methods[route.path] = append(methods[route.path], route.method)
	}
	for path, allowed := range methods {
		mux.Handle(path, s.handler(at, "none", at.needs(route{}), func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Allow", strings.Join(slices.Sorted(slices.Values(allowed)), ", "))
			return &problem{Status: http.StatusMethodNotAllowed, Type: "method-not-allowed", Detail: "The path does not have the method " + r.Method + "."}
		}))
	}
	nowhere := s.handler(at, "none", at.needs(route{}), func(http.ResponseWriter, *http.Request) error {
		return &problem{Status: http.StatusNotFound, Type: "no-such-path", Detail: "GET /v1/openapi.yaml has the paths. A slash in a resource's name is %2F there."}
	})
	mux.Handle("/v1/", nowhere)
	if at.applications {
		mux.Handle("/", nowhere)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux would redirect a path with an empty segment, as of an empty name.
		if at := r.URL.EscapedPath(); urlpath.Clean(at) != strings.TrimSuffix(at, "/") {
			nowhere.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serve serves a request that was admitted to a route.
func (s *Server) serve(at endpoint, route route, w http.ResponseWriter, r *http.Request) (err error) {
	if at.applications && !route.application {
		return &problem{Status: http.StatusForbidden, Type: "admin-only", Detail: "This listener is for applications. Ask the admin listener, WIREFENCE_ADMIN_LISTEN, for this."}
	}
	var resource fence.Resource
	if strings.Contains(route.path, "{resource}") {
		if resource, err = fence.ParseResource(r.PathValue("resource")); err != nil {
			return badRequest("the path names no resource: %s", nameFault(err))
		}
	}
	if route.limit > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), route.limit)
		defer cancel()
		r = r.WithContext(ctx)
	}
	return route.serve(s, w, r, resource)
}

// handler admits a request, serves it, answers errors with their problem, and counts it.
func (s *Server) handler(at endpoint, operation string, needs scope, serve func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		status := http.StatusOK
		c, err := s.admit(at, w, r)
		if err == nil {
			r = withCaller(r, c)
			err = s.allow(r, operation, needs)
		}
		if err == nil {
			extend(w, answerTime)
			err = serve(w, r)
		} else {
			w.Header().Set("Connection", "close") // otherwise the answer waits for the body
		}
		if err != nil {
			status = s.fail(w, r, operation, err)
		}
		s.metrics.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	})
}

// extend sets the deadlines of an admitted request from now on. The listener's own timeouts are
// for probes, and its read timeout would end the context of a request that waits.
func extend(w http.ResponseWriter, d time.Duration) {
	deadlines := http.NewResponseController(w)
	_ = deadlines.SetReadDeadline(time.Now().Add(d))
	_ = deadlines.SetWriteDeadline(time.Now().Add(d))
}

func (s *Server) file(w http.ResponseWriter, _ *http.Request, _ fence.Resource) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(openAPI)
	return err
}

type metrics struct {
	requests *prometheus.CounterVec
	waits    prometheus.Gauge
	streams  prometheus.Gauge
	effects  prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_api_requests_total",
			Help: "Requests of the HTTP API, by operation and status; 499: the caller went away.",
		}, []string{"operation", "status"}),
		waits: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_api_waits", Help: "Acquires over HTTP that wait for a holder now.",
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_api_streams", Help: "Event streams that are open now.",
		}),
		effects: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_api_effects", Help: "Effects over HTTP that are open now.",
		}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.waits, m.streams, m.effects)
	}
	return m
}
