import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

/** A certificate and its key, as text and as files. */
export interface Pair {
  cert: string;
  key: string;
  certFile: string;
  keyFile: string;
}

/** A private authority, certificates that it signed, and one that it did not sign. */
export interface Certificates {
  ca: Pair;
  /** Valid for localhost and 127.0.0.1. */
  server: Pair;
  client: Pair;
  stranger: Pair;
  /** Creates one with these extensions (openssl), signed by the authority unless another one is given. */
  make(name: string, extensions: string, signer?: Pair): Promise<Pair>;
  remove(): Promise<void>;
}

/** Creates certificates that are valid for a day, in a temporary directory. */
export async function makeCertificates(): Promise<Certificates> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-tls-"));
  const make = async (name: string, extension: string, signer?: Pair): Promise<Pair> => {
    const [certFile, keyFile] = [join(directory, `${name}.pem`), join(directory, `${name}.key`)];
    const extensionFile = join(directory, `${name}.cnf`);
    await writeFile(extensionFile, `[req]\ndistinguished_name=dn\nx509_extensions=ext\n[dn]\n[ext]\n${extension}\n`);
    const signed = signer === undefined ? [] : ["-CA", signer.certFile, "-CAkey", signer.keyFile];
    const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    const files = ["-config", extensionFile, "-keyout", keyFile, "-out", certFile];
    await openssl("req", "-x509", ...curve, "-days", "1", "-subj", `/CN=${name}`, ...signed, ...files);
    return { certFile, keyFile, cert: await readFile(certFile, "utf8"), key: await readFile(keyFile, "utf8") };
  };
  const ca = await make("ca", "basicConstraints=critical,CA:TRUE");
  return {
    ca,
    server: await make("server", "subjectAltName=DNS:localhost,IP:127.0.0.1", ca),
    client: await make("client", "basicConstraints=CA:FALSE", ca),
    stranger: await make("stranger", "basicConstraints=critical,CA:TRUE"),
    make: (name, extensions, signer = ca) => make(name, extensions, signer),
    remove: () => rm(directory, { recursive: true }),
  };
}

async function openssl(...args: string[]): Promise<void> {
  await promisify(execFile)("openssl", args).catch((cause) => {
    const message =
      cause.code === "ENOENT" ? "openssl is missing; install it: apt-get install -y openssl" : cause.stderr;
    throw new Error(message, { cause });
  });
}
