// A pod's life through the JavaScript client, with the kubeconfig that `posse dev` wrote.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { PassThrough } from 'node:stream';

const k8s = await import(process.env.CLIENT_NODE);
const namespace = process.env.NS;
const config = new k8s.KubeConfig();
config.loadFromFile(process.env.DEV_KUBECONFIG);
const core = config.makeApiClient(k8s.CoreV1Api);

const text = (stream) => {
  const read = { said: '' };
  stream.on('data', (piece) => { read.said += piece; });
  return read;
};

async function until(what, look) {
  for (const deadline = Date.now() + 60_000; !(await look());) {
    assert.ok(Date.now() < deadline, `waited 60 s for ${what}`);
    await new Promise((later) => setTimeout(later, 50));
  }
}

const list = async () => (await core.listNamespacedPod({ namespace })).items.map((pod) => pod.metadata.name);
assert.deepEqual(await list(), []);
const seen = [];
const path = `/api/v1/namespaces/${namespace}/pods`;
const watch = await new k8s.Watch(config).watch(path, {}, (type, pod) => seen.push([type, pod]), () => {});
const body = JSON.parse(fs.readFileSync(process.env.SERVED, 'utf8'));
await core.createNamespacedPod({ namespace, body });
const isReady = ([, pod]) => pod.status.conditions?.some((c) => c.type === 'Ready' && c.status === 'True');
await until('the pod to be ready', () => seen.some(isReady));
assert.equal(seen[0][0], 'ADDED');
assert.deepEqual(await list(), ['served']);

const log = new PassThrough();
const logged = text(log);
const following = await new k8s.Log(config).log(namespace, 'served', 'c', log, { follow: true });
await until('the log', () => logged.said === 'begun\n');
following.abort();

const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
const [out, err] = [text(stdout), text(stderr)];
const script = 'read line; echo got $line; echo err >&2; exit 7';
stdin.write('in\n');
const status = await new Promise((resolve, reject) => {
  new k8s.Exec(config)
    .exec(namespace, 'served', 'c', ['sh', '-c', script], stdout, stderr, stdin, false, resolve)
    .catch(reject);
});
assert.equal(status.details.causes[0].message, '7');
await until('the output', () => out.said === 'got in\n' && err.said === 'err\n');

const [input, output] = [new PassThrough(), new PassThrough()];
const answered = text(output);
const socket = await new k8s.PortForward(config).portForward(namespace, 'served', [8080], output, null, input);
input.write('ping');
await until('the port', () => answered.said === 'got ping');
socket.close();

await core.deleteNamespacedPod({ name: 'served', namespace });
await until('the end', () => seen.some(([type]) => type === 'DELETED'));
assert.deepEqual(await list(), []);
watch.abort();
console.log('client-node ok');
process.exit(0);
