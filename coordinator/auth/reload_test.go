package auth

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Files that change while connections are open count for the next handshake,
// and cut none of the open ones.
func TestReloadWhileConnected(t *testing.T) {
	ca, next := newCA(t), newCA(t)
	at := &clock{}
	log := &lines{}
	serverDir, clientDir := t.TempDir(), t.TempDir()
	reissue(t, ca, serverDir, "coordinator/n1", year, "127.0.0.1")
	reissue(t, ca, clientDir, "worker/w1", year)
	server := at.mustLoad(FilesIn(serverDir), log.logger())
	client := at.load(FilesIn(clientDir))
	c := serve(t, server, false)
	open := c.dial(t, options(t, client, "")...)
	who, err := whoami(t, open)
	require.NoError(t, err)
	require.Equal(t, "worker/w1", who)

	// Both authorities are trusted first, then certificates are replaced one by one, then the old authority goes.
	both := append(append([]byte{}, ca.PEM()...), next.PEM()...)
	write(t, filepath.Join(serverDir, "ca.pem"), both)
	write(t, filepath.Join(clientDir, "ca.pem"), both)
	at.advance(2 * time.Second)
	reissue(t, next, clientDir, "worker/w2", year)
	write(t, filepath.Join(clientDir, "ca.pem"), both)
	at.advance(2 * time.Second)
	who, err = whoami(t, c.dial(t, options(t, client, "")...))
	require.NoError(t, err)
	require.Equal(t, "worker/w2", who, "a new connection has the new certificate")
	reissue(t, next, serverDir, "coordinator/n1", year, "127.0.0.1")
	write(t, filepath.Join(clientDir, "ca.pem"), next.PEM())
	at.advance(2 * time.Second)
	_, err = whoami(t, c.dial(t, options(t, client, "")...))
	require.NoError(t, err)
	old := at.load(issue(t, ca, "worker/w3", year))
	_, err = whoami(t, c.dial(t, options(t, old, "")...))
	denied(t, err, "of an authority that is not in")

	who, err = whoami(t, open)
	require.NoError(t, err)
	require.Equal(t, "worker/w1", who, "the open connection is what it was")
	require.Equal(t, 2, log.count("were read again"))
}

func TestBrokenFilesKeepTheOldOnes(t *testing.T) {
	ca, foreign := newCA(t), newCA(t)
	at := &clock{}
	log := &lines{}
	dir := t.TempDir()
	reissue(t, ca, dir, "coordinator/n1", year, "127.0.0.1")
	files := FilesIn(dir)
	server := at.mustLoad(files, log.logger())
	c := serve(t, server, false)
	client := at.load(issue(t, ca, "worker/w", year))
	works := func() {
		t.Helper()
		at.advance(2 * time.Second)
		_, err := whoami(t, c.dial(t, options(t, client, "")...))
		require.NoError(t, err)
	}
	good := map[string][]byte{}
	for _, f := range []string{files.CA, files.Cert, files.Key} {
		var err error
		good[f], err = os.ReadFile(f)
		require.NoError(t, err)
	}
	otherCert, otherKey, err := foreign.Issue(Identity{Coordinator, "n1"}, []string{"127.0.0.1"}, year)
	require.NoError(t, err)
	for i, change := range []func(){
		func() { write(t, files.Cert, good[files.Cert][:200]) }, // cut
		func() { write(t, files.Cert, otherCert) },              // not the key's
		func() { write(t, files.Key, otherKey) },                // of another authority
		func() {
			write(t, files.CA, append(good[files.CA][:len(good[files.CA]):len(good[files.CA])], "-----BEGIN X"...))
		}, // the second one is cut
		func() { require.NoError(t, os.Remove(files.CA)) },                     // gone
		func() { write(t, files.CA, good[files.CA][:len(good[files.CA])-40]) }, // cut
	} {
		change()
		works()
		works()
		require.Equal(t, i+1, log.count("cannot be used"), "each is said once:\n%s", log.text.String())
	}
	for f, text := range good {
		write(t, f, text)
	}
	works()
	require.Equal(t, 1, log.count("were read again"))
	reissue(t, ca, dir, "coordinator/n1", 2*year, "127.0.0.1")
	works()
	require.WithinDuration(t, time.Now().Add(2*year), server.Expires(), time.Hour)
}

// hashicorp/vault#11150: the clock of the active node ran ahead, certificates
// were near their end, and when it was killed the cluster was gone. Here the
// node with the wrong clock refuses and says why, the others go on without it,
// and a new certificate in the same place brings it back, clock and all.
func TestVault11150_CertificatesNearTheirEndAndAClockThatDrifts(t *testing.T) {
	ca := newCA(t)
	const left = time.Hour
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	var clocks [3]clock
	var logs [3]lines
	var nodes [3]*Credentials
	for i, dir := range dirs {
		reissue(t, ca, dir, "coordinator/n"+string(rune('1'+i)), left, "127.0.0.1")
		nodes[i] = clocks[i].mustLoad(FilesIn(dir), logs[i].logger())
		require.Equal(t, 1, logs[i].count("ends soon"), "said at the start")
		require.WithinDuration(t, time.Now().Add(left), nodes[i].Expires(), time.Minute)
	}
	clocks[0].advance(2 * time.Hour)
	for _, other := range []int{1, 2} {
		_, err := exchange(t, nodes[other], nodes[0])
		require.ErrorContains(t, err, "set the clocks right", "the node that drifted refuses")
		_, err = exchange(t, nodes[0], nodes[other])
		require.ErrorContains(t, err, "set the clocks right", "and says so to those that call it")
	}
	for _, pair := range [][2]int{{1, 2}, {2, 1}} {
		serverErr, clientErr := exchange(t, nodes[pair[0]], nodes[pair[1]])
		require.NoError(t, serverErr)
		require.NoError(t, clientErr, "the others do not need it")
	}
	// It was killed and starts again on its files: its clock must not keep it from starting.
	_, err := FilesIn(dirs[0]).load(logs[0].logger(), clocks[0].now)
	require.NoError(t, err)

	for i, dir := range dirs {
		reissue(t, ca, dir, "coordinator/n"+string(rune('1'+i)), year, "127.0.0.1")
		clocks[i].advance(2 * time.Second)
	}
	for _, pair := range [][2]int{{0, 1}, {1, 0}, {2, 0}} {
		serverErr, clientErr := exchange(t, nodes[pair[0]], nodes[pair[1]])
		require.NoError(t, serverErr)
		require.NoError(t, clientErr)
	}
	require.Equal(t, 1, logs[1].count("ends soon"), "once a day, and no more after the renewal")
}

func TestTheEndIsSaidOnceADay(t *testing.T) {
	ca, err := NewCA("short", 20*24*time.Hour)
	require.NoError(t, err)
	at := &clock{}
	log := &lines{}
	c := at.mustLoad(issue(t, ca, "coordinator/n1", year, "h"), log.logger())
	require.WithinDuration(t, ca.Expires(), c.Expires(), time.Second, "a certificate ends with its authority")
	require.Zero(t, log.count("ends soon"))
	at.advance(2 * time.Hour)
	for range 22 * 6 { // until two days after the end
		at.advance(4 * time.Hour)
		_ = c.Expires()
	}
	require.Equal(t, 10, log.count("ends soon"))
	at.advance(-5 * 24 * time.Hour)
	_ = c.Expires()
	require.Equal(t, 11, log.count("ends soon"), "a clock that was set back does not silence it for five days")
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	ca, foreign := newCA(t), newCA(t)
	good := issue(t, ca, "worker/w", year)
	other := issue(t, foreign, "worker/w", year)
	text := filepath.Join(t.TempDir(), "text")
	write(t, text, []byte("no PEM"))
	for name, c := range map[string]struct {
		files Files
		words string
	}{
		"nothing":              {Files{}, "authority's certificate (ca.pem) is missing"},
		"no key":               {Files{CA: good.CA, Cert: good.Cert}, "belong together"},
		"no such file":         {Files{CA: good.CA + "x"}, "no such file"},
		"no such certificate":  {Files{CA: good.CA, Cert: good.Cert + "x", Key: good.Key}, "no such file"},
		"no PEM":               {Files{CA: text}, "not a PEM file of certificates"},
		"a key as authority":   {Files{CA: good.Key}, "not a PEM file of certificates"},
		"another key":          {Files{CA: good.CA, Cert: good.Cert, Key: other.Key}, "are not a certificate and its key"},
		"of another authority": {Files{CA: good.CA, Cert: other.Cert, Key: other.Key}, "was not issued by the authority in"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.files.Load((&lines{}).logger())
			require.ErrorContains(t, err, c.words)
			require.ErrorContains(t, err, "auth: ")
		})
	}
}
