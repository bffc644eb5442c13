package lease

import (
	"fmt"
	"strings"
)

// The kinds of resource that are leased.
const (
	KindEpisode = "episode"
	KindVerify  = "verify"
	KindGang    = "gang"
	KindPublish = "publish"
)

// Episode names a member's attempt as a resource.
func Episode(run string, group uint64, index int32) string {
	return KindEpisode + "/" + Member(run, group, index)
}

// Verify names the verify job of a member.
func Verify(run string, group uint64, index int32) string {
	return KindVerify + "/" + Member(run, group, index)
}

// Gang names the training gang of a run.
func Gang(run string) string { return KindGang + "/" + run }

// Publish names the publication of a run's next version.
func Publish(run string) string { return KindPublish + "/" + run }

// Member is the key of a group's member; keys sort as (run, group, index).
func Member(run string, group uint64, index int32) string {
	return fmt.Sprintf("%s/%012d/%06d", run, group, index)
}

// Split returns the kind and the rest of a resource name.
func Split(resource string) (kind, rest string) {
	kind, rest, _ = strings.Cut(resource, "/")
	return kind, rest
}
