/** Yields all pages of a list of the contract. */
export async function* pagesOf<Page extends { nextPageToken: string }>(
  list: (request: { pageSize: number; pageToken: string }) => Promise<Page>,
): AsyncGenerator<Page, void> {
  for (let pageToken = ""; ; ) {
    const page = await list({ pageSize: 500, pageToken });
    yield page;
    if (page.nextPageToken === "") return;
    pageToken = page.nextPageToken;
  }
}
