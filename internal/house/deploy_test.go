package house

import (
	"regexp"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy"
)

var upstream = regexp.MustCompile(`(?:WIREFENCE_UPSTREAM(?:: |='?)|name: WIREFENCE_UPSTREAM\n\s+value: )(postgres://[^\s']+)`)

// This version of the proxy accepts the upstreams of the deployments and of the README.
func TestDeployedUpstreamsAreAccepted(t *testing.T) {
	t.Parallel()
	seen := 0
	for name, text := range files(t) {
		if name != "docker-compose.yml" && name != "README.md" && !strings.HasPrefix(name, "deploy/kubernetes/") {
			continue
		}
		for _, match := range upstream.FindAllStringSubmatch(text, -1) {
			seen++
			options := proxy.Options{Upstream: match[1]}
			if err := options.Validate(); err != nil {
				t.Errorf("%s: %s: %v", name, match[1], err)
			}
		}
	}
	if seen < 4 {
		t.Errorf("only %d upstreams were found, of the README, the compose file and two manifests", seen)
	}
}
