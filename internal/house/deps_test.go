package house

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A program that takes leases links the client of the store that it imports, and no other's.
func TestAStoreBringsItsOwnClientAlone(t *testing.T) {
	t.Parallel()
	clients := []string{"github.com/redis/go-redis/v9", "go.etcd.io/etcd/client/v3", "google.golang.org/grpc", "github.com/go-zookeeper/zk",
		"github.com/prometheus/client_golang/prometheus", "go.opentelemetry.io/otel"}
	for store, want := range map[string][]string{
		"": nil, "/postgres": nil, "/redis": {"github.com/redis/go-redis/v9"}, "/zookeeper": {"github.com/go-zookeeper/zk"},
		"/etcd": {"go.etcd.io/etcd/client/v3", "google.golang.org/grpc"},
	} {
		out, err := exec.Command("go", "list", "-deps", "github.com/wirefence/wirefence/lockclient"+store).CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, out)
		}
		linked := strings.Fields(string(out))
		for _, client := range clients {
			if slices.Contains(linked, client) != slices.Contains(want, client) {
				t.Errorf("lockclient%s links %s: %t", store, client, !slices.Contains(want, client))
			}
		}
	}
}
